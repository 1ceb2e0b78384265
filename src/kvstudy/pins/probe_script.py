"""Runs inside an image: what is installed, and the defaults that decide hypotheses.

Sent to the image's Python on stdin. Standard library only, no import of the engine (which would
want a GPU): versions come from package metadata, defaults from the parsed source. Prints one line,
`KVSTUDY-PROBE ` and JSON. What cannot be found is null, with the reason under "notes".
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

MARK = "KVSTUDY-PROBE "
PACKAGES = (
    "tensorrt_llm",
    "vllm",
    "sglang",
    "torch",
    "transformers",
    "tokenizers",
    "tensorrt",
    "tensorrt-cu12",
    "tensorrt-cu13",
    "flashinfer-python",
    "flashinfer",
    "sgl-kernel",
    "xgrammar",
    "triton",
    "numpy",
    "pydantic",
    "cuda-python",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-modelopt",
)
COMMANDS = ("trtllm-serve", "vllm", "sglang", "python3", "mpirun")
HEADERS = {
    "cudnn": ("cudnn_version.h", ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")),
    "nccl": ("nccl.h", ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH")),
    "tensorrt": (
        "NvInferVersion.h",
        ("NV_TENSORRT_MAJOR", "NV_TENSORRT_MINOR", "NV_TENSORRT_PATCH"),
    ),
}
INCLUDES = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/cuda/include")
MOST_SOURCE = 4000


def packages() -> dict[str, str]:
    """Installed versions of the packages that matter."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read(path: Path) -> str:
    """Text of a file, or an empty string."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def system() -> Facts:
    """OS, Python, and the versions of the native libraries."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read(Path("/etc/os-release")), re.M))
    try:
        cuda = json.loads(read(Path("/usr/local/cuda/version.json")))["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        cuda = os.environ.get("CUDA_VERSION")
    libraries = {"cuda": cuda}
    for name, (header, macros) in HEADERS.items():
        text = "".join(read(Path(folder, header)) for folder in INCLUDES)
        parts = [re.search(rf"#define\s+{macro}\s+(\d+)", text) for macro in macros]
        libraries[name] = ".".join(p[1] for p in parts if p) if all(parts) else None
    return {
        "os": release.get("PRETTY_NAME"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "libraries": libraries,
        "commands": {name: shutil.which(name) for name in COMMANDS},
    }


def entry_points() -> dict[str, str]:
    """Console scripts of the engines."""
    found = {}
    for point in importlib.metadata.entry_points(group="console_scripts"):
        if point.name.startswith(("trtllm", "vllm", "sglang")):
            found[point.name] = point.value
    return found


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, found without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    first = next(iter(spec.submodule_search_locations), None)
    return Path(first) if first is not None else None


def tree(path: Path) -> ast.Module | None:
    """Parsed source of a file, or None."""
    text = read(path)
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None


def literal(node: ast.expr) -> Any:
    """Value of a default, or its source when it is not a plain literal."""
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
    except (ValueError, TypeError):
        return ast.unparse(node)
    return value


def walk(parsed: ast.AST | None) -> list[ast.AST]:
    """Every node, or none of a source that could not be read."""
    return list(ast.walk(parsed)) if parsed is not None else []


def find_class(parsed: ast.AST | None, name: str) -> ast.ClassDef | None:
    """First class of a name, at any depth."""
    found = [n for n in walk(parsed) if isinstance(n, ast.ClassDef) and n.name == name]
    return found[0] if found else None


def find_function(parsed: ast.AST | None, name: str) -> ast.FunctionDef | None:
    """First function of a name, at any depth."""
    found = [n for n in walk(parsed) if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[0] if found else None


def default_of(function: ast.FunctionDef, name: str) -> tuple[bool, Any]:
    """`(True, default)` of an argument; `(True, None)` without one; `(False, None)` if absent."""
    args = function.args
    plain = args.posonlyargs + args.args
    nodes: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
    nodes += [*args.defaults, *args.kw_defaults]
    for arg, node in zip(plain + args.kwonlyargs, nodes, strict=True):
        if arg.arg == name:
            return True, None if node is None else literal(node)
    return False, None


def executor(folder: Path, notes: list[str]) -> Facts:
    """The default of PyExecutor's max_input_len, and whether its callers pass another one."""
    inside = folder / "_torch" / "pyexecutor"
    owner = find_class(tree(inside / "py_executor.py"), "PyExecutor")
    function = find_function(owner, "__init__")
    if function is None:
        notes.append("PyExecutor.__init__ not found; the layout of this version is another one")
        return {"max_input_len_default": None, "has_max_input_len": None, "calls": []}
    present, value = default_of(function, "max_input_len")
    calls = []
    for path in sorted(inside.glob("*.py")):
        for node in walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "PyExecutor":
                passed = [k.value for k in node.keywords if k.arg == "max_input_len"]
                calls.append(
                    {
                        "file": path.name,
                        "line": node.lineno,
                        "passes_max_input_len": ast.unparse(passed[0]) if passed else None,
                        "may_pass_more": any(k.arg is None for k in node.keywords),
                    }
                )
    return {"max_input_len_default": value, "has_max_input_len": present, "calls": calls}


def members(parsed: ast.AST | None, name: str) -> list[Any] | None:
    """Values of an enum class, or of a `Literal[...]` alias of that name."""
    owner = find_class(parsed, name)
    if owner is not None:
        pairs = [n for n in owner.body if isinstance(n, ast.Assign)]
        return [literal(n.value) for n in pairs]
    for node in walk(parsed):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return None


def field_defaults(parsed: ast.AST | None, name: str) -> Facts:
    """Defaults of the fields of a settings class."""
    owner = find_class(parsed, name)
    found = {}
    for node in owner.body if owner is not None else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = node.value
            if isinstance(value, ast.Call):
                given = [k.value for k in value.keywords if k.arg in ("default", "default_factory")]
                value = given[0] if given else (value.args[0] if value.args else None)
            found[node.target.id] = None if value is None else literal(value)
    return found


def merge(folder: Path, notes: list[str]) -> Facts:
    """How the command line and the YAML file are combined for kv_cache_config."""
    path = folder / "llmapi" / "llm_args.py"
    function = find_function(tree(path), "update_llm_args_with_extra_dict")
    if function is None:
        notes.append("the function that merges command line and YAML was not found")
        return {"kv_cache_config": None, "other_keys": None}
    unions = [
        n for n in ast.walk(function) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr)
    ]
    texts = [ast.unparse(node) for node in unions]
    per_key = any("kv_cache_config" in text for text in texts) or any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("update", "merge", "deep_update", "model_copy")
        and "kv_cache_config" in ast.unparse(n)
        for n in ast.walk(function)
    )
    whole = any("llm_args" in text for text in texts)
    source = ast.unparse(function)
    return {
        "kv_cache_config": "yaml over command line, key by key"
        if per_key
        else ("yaml replaces the command line's" if whole else None),
        "other_keys": "yaml replaces the command line's" if whole else None,
        "function": f"llmapi/llm_args.py:{function.lineno} {function.name}",
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        "source": source[:MOST_SOURCE],
    }


def trtllm(folder: Path, notes: list[str]) -> Facts:
    """Facts of an installed TensorRT-LLM."""
    arguments = tree(folder / "llmapi" / "llm_args.py")
    return {
        "executor": executor(folder, notes),
        "capacity_scheduler_policies": members(arguments, "CapacitySchedulerPolicy"),
        "context_chunking_policies": members(arguments, "ContextChunkingPolicy"),
        "scheduler_config_defaults": field_defaults(arguments, "SchedulerConfig"),
        "kv_cache_config_defaults": field_defaults(arguments, "KvCacheConfig"),
        "merge": merge(folder, notes),
    }


def vllm(folder: Path, _notes: list[str]) -> Facts:
    """Facts of an installed vLLM."""
    scheduler = tree(folder / "config" / "scheduler.py")
    return {
        "scheduler_policies": members(scheduler, "SchedulerPolicy"),
        "scheduler_config_defaults": field_defaults(scheduler, "SchedulerConfig"),
    }


def sglang(folder: Path, _notes: list[str]) -> Facts:
    """Facts of an installed SGLang."""
    arguments = tree(folder / "srt" / "server_args.py")
    wanted = ("schedule_policy", "schedule_conservativeness", "chunked_prefill_size", "page_size")
    defaults = field_defaults(arguments, "ServerArgs")
    return {"server_defaults": {name: defaults.get(name) for name in wanted}}


ENGINES: dict[str, Callable[[Path, list[str]], Facts]] = {
    "tensorrt_llm": trtllm,
    "vllm": vllm,
    "sglang": sglang,
}


def facts() -> Facts:
    """Everything, as one JSON object."""
    notes: list[str] = []
    engines = {}
    for name, look in ENGINES.items():
        folder = package_folder(name)
        if folder is not None:
            engines[name] = look(folder, notes)
    return {
        "packages": packages(),
        "system": system(),
        "entry_points": entry_points(),
        "engines": engines,
        "notes": notes,
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + MARK + json.dumps(facts(), sort_keys=True) + "\n")
