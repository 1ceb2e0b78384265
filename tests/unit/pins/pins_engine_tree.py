"""Constructed package trees that look like engines to the probe. None of this is engine code.

Only the few names the probe looks for are there, in the places where the real packages have them.
"""

from __future__ import annotations

from pathlib import Path

IMPORT_GUARD = 'raise ImportError("constructed: needs a GPU; the probe must not import it")\n'

_EXECUTOR = """
class PyExecutor:
    def __init__(self, resources, scheduler, *, overlap=False{argument}):
        self.max_input_len = {value}
"""
_CREATOR = """
def create(resources, scheduler):
    return PyExecutor(resources, scheduler, overlap=True{passed})
"""
_ARGUMENTS = '''
from enum import Enum

class CapacitySchedulerPolicy(str, Enum):
    """Constructed."""
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"

class ContextChunkingPolicy(str, Enum):
    FIRST_COME_FIRST_SERVED = "FIRST_COME_FIRST_SERVED"

class SchedulerConfig(Base):
    capacity_scheduler_policy: CapacitySchedulerPolicy = Field(
        default=CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, description="constructed")
    context_chunking_policy: object = Field(default=None)

class KvCacheConfig(Base):
    enable_block_reuse: bool = Field(default=True)
    free_gpu_memory_fraction: float = 0.9

def update_llm_args_with_extra_dict(llm_args, llm_args_dict, extra=None):
{merge}
    return llm_args | llm_args_dict
'''
_KEY_BY_KEY = """
    if "kv_cache_config" in llm_args_dict:
        llm_args_dict["kv_cache_config"] = (
            llm_args["kv_cache_config"] | llm_args_dict["kv_cache_config"])
"""


def trtllm_tree(
    version: str,
    *,
    argument: str = ", max_input_len: int = 2048",
    value: str = "max_input_len",
    passed: str = "",
    key_by_key: bool = False,
) -> dict[str, bytes]:
    """Files of a constructed tensorrt_llm of a version, by path below site-packages."""
    files = {
        "tensorrt_llm/__init__.py": IMPORT_GUARD,
        "tensorrt_llm/_torch/pyexecutor/py_executor.py": _EXECUTOR.format(
            argument=argument, value=value
        ),
        "tensorrt_llm/_torch/pyexecutor/creator.py": _CREATOR.format(passed=passed),
        "tensorrt_llm/_torch/pyexecutor/broken.py": "def (:\n",
        "tensorrt_llm/llmapi/llm_args.py": _ARGUMENTS.format(
            merge=_KEY_BY_KEY if key_by_key else ""
        ),
        **_metadata("tensorrt_llm", version, "trtllm-serve = tensorrt_llm.commands.serve:main"),
        **_metadata("torch", "2.9.0"),
        **_metadata("transformers", "4.57.1"),
    }
    return {name: text.encode() for name, text in files.items()}


def vllm_tree(version: str) -> dict[str, bytes]:
    """Files of a constructed vllm."""
    files = {
        "vllm/__init__.py": IMPORT_GUARD,
        "vllm/config/scheduler.py": (
            'SchedulerPolicy = Literal["fcfs", "priority"]\n'
            "class SchedulerConfig:\n    policy: SchedulerPolicy = 'fcfs'\n"
        ),
        **_metadata("vllm", version, "vllm = vllm.entrypoints.cli.main:main"),
    }
    return {name: text.encode() for name, text in files.items()}


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    """Write a tree."""
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return folder


def _metadata(name: str, version: str, script: str = "") -> dict[str, str]:
    folder = f"{name}-{version}.dist-info"
    files = {f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    if script:
        files[f"{folder}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    return files
