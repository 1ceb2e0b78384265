"""Raises the default of PyExecutor's max_input_len in every Python that has this file on its path.

For overlays/patched-cut.yaml: on TensorRT-LLM 1.2.1 a paused request is assumed to come back cut
to that many tokens. With the default out of the way, a cliff that the cut makes must be gone.
Says on stderr what it did, so that the server's log proves it. Standard library only.
"""

import importlib.abc
import importlib.util
import inspect
import sys

MODULE = "tensorrt_llm._torch.pyexecutor.py_executor"
LIMIT = 0x7FFFFFFF


def patch(module):
    """Give PyExecutor.__init__ a max_input_len that cuts nothing, and say so."""
    init = inspect.unwrap(module.PyExecutor.__init__)
    parameter = inspect.signature(init).parameters.get("max_input_len")
    if parameter is None or parameter.default is inspect.Parameter.empty:
        say("PyExecutor has no default for max_input_len; nothing was patched")
        return
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        init.__kwdefaults__["max_input_len"] = LIMIT
    else:
        defaulted = [
            p.name
            for p in inspect.signature(init).parameters.values()
            if p.default is not p.empty and p.kind is not p.KEYWORD_ONLY
        ]
        values = list(init.__defaults__)
        values[defaulted.index("max_input_len")] = LIMIT
        init.__defaults__ = tuple(values)
    say(f"default of max_input_len raised from {parameter.default} to {LIMIT}")


def say(words):
    """One line in the server's log."""
    print(f"kvstudy patched-cut: {words}", file=sys.stderr, flush=True)


class Patching(importlib.abc.Loader):
    """Loads the module as its own loader does, then patches it."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        """As the module's own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module):
        """As the module's own loader, and then the patch."""
        self.loader.exec_module(module)
        patch(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one module by asking all other finders, and wraps its loader."""

    def find_spec(self, name, path, target=None):
        """The module's own spec with a patching loader; None for all other modules."""
        if name != MODULE:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Patching(spec.loader)
                return spec
        return None


sys.meta_path.insert(0, Finder())
