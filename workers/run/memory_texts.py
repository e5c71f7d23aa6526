"""The texts by which programs say that a device was out of memory, with the framework and version of each. Pure.

The texts are those of real logs and issues. They hold an error's own words, not just "out of memory": sentences, data
and the messages of the host's memory have those too.
"""

from __future__ import annotations

import re

#: The texts that only a lack of device memory has.
_OF_DEVICES: tuple[tuple[str, bytes], ...] = (
    (
        "PyTorch 1.13 to 2.9",
        (
            rb"(?m:(?:^|[\w)]: *)(?:CUDA|HIP|XPU) out of memory\b)|CUDA out of memory\. Tried to allocate"
            rb"|(?:torch(?:\.cuda)?\.|c10::)OutOfMemoryError\b"
        ),
    ),
    ("cuBLAS, cuDNN 8 and others of CUDA 12", rb"\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE|TENSOR)_STATUS_ALLOC_FAILED\b"),
    ("cuDNN 9, cuRAND, cuFFT 11", rb"\bCU(?:RAND_STATUS_ALLOCATION|DNN\w+DEVICE_ALLOCATION|FFT_ALLOC)_FAILED\b"),
    ("CuPy 13", rb"cupy\.cuda\.memory\.OutOfMemoryError"),
    (
        "jaxlib 0.3 to 0.7",
        rb"(?:Xla|Jax)RuntimeError: RESOURCE_EXHAUSTED|Error: RESOURCE_EXHAUSTED: (?:Out of|Failed to alloc)",
    ),
    ("jaxlib 0.1", rb"Resource exhausted: Out of memory while trying to allocate"),
    ("TensorFlow 1.8 to 2.18", rb"OOM when allocating(?![^\n]*by allocator (?:\w*cpu|\w*host_bfc))"),
    (
        "TensorFlow 2.18",
        (
            rb"(?:Resource ?[Ee]xhausted(?:Error)?: |\}\} ?)failed to allocate memory\b"
            rb"|failed to allocate memory\s+\[(?:\[\{\{|Op:)"
        ),
    ),
    ("TensorFlow 2.10", rb"Dst tensor is not initialized"),
    (
        "TensorFlow 1.8 and XLA of jaxlib 0.5",
        rb"(?m:^(?!.*(?:_host_|\(cpu|not a failure)).*\bran out of memory trying to allocate\b)",
    ),
    ("llama.cpp b1700 and later, MXNet 1.4", rb"\b(?:cuda|hip)Malloc(?:Async)?(?: retry)? failed: out of memory"),
    ("llama.cpp b1700 and later", rb"\bfailed to allocate (?:CUDA|ROCm)\d+ buffer\b"),
    ("ONNX Runtime 1.9 to 1.19", rb"Failed to allocate memory for requested buffer of size \d"),
    ("PaddlePaddle 1.8 to 2.6", rb"Out of memory error on GPU \d"),
    ("rmm 0.9 to 24.02", rb"\bbad_alloc: (?:out_of_memory: )?(?:CUDA error|RMM failure)|RMM_ERROR_OUT_OF_MEMORY"),
    (
        "TensorRT 8 and 10",
        rb"Cuda Runtime \(out of memory\)|Error Code 2: OutOfMemory \((?:no further information|Requested size)",
    ),
    ("LightGBM 4", rb"\[CUDA\] out of memory"),
    ("bitsandbytes 0.41", rb"\bError out of memory at line \d+ in file"),
    ("CUDA.jl 5", rb"\bOut of GPU memory trying to allocate"),
    ("Triton 2 and 3", rb"Triton Error \[(?:CUDA|HIP)\]: out of memory"),
    (
        "vLLM 0.8 to 0.11",
        (
            rb"Error: No available memory for the cache blocks"
            rb"|Error: Free memory on device [^\n]{1,80} is less than desired GPU memory utilization"
        ),
    ),
    ("XGBoost 1.4 to 3.0", rb"\bMemory allocation error on worker \d+: "),
    (
        "RELION 2 to 5",
        (
            rb"\b(?:[Cc]uda|Hip)CustomAllocator out of memory|You ran out of memory on the GPU"
            rb"|ERROR: out of memory in [^\n]{1,200} \(error-code 2\)"
        ),
    ),
    (
        "Cycles of Blender 2.7 to 4.1",
        rb"System is out of GPU (?:memory|and shared host memory)|Out of memory in cu[A-Z]\w+\(",
    ),
    ("Vulkan in llama.cpp b2100 and later", rb"\bErrorOutOfDeviceMemory\b|VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    ("OpenCL 1.2", rb"CL_MEM_OBJECT_ALLOCATION_FAILURE"),
)
#: The texts of error 2 of CUDA's runtime and driver, as programs print it. An allocation of pinned host memory that
#: fails has the same error.
_OF_CUDA = re.compile(
    rb"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    # NCCL 2.20, gpuErrchk, CTranslate2 2.11, faiss 1.7, PyCUDA 2022, GROMACS 2023, Caffe 1.0
    # Mitsuba 2, hashcat 6
    rb"|\bcu(?:da_m|Mem)\w*\(\): out of memory"
    # tinygrad 0.9, spconv 2
    rb"|(?i:\bcuda (?:failed with )?error 2,? out of memory)"
    rb"|(?i:(?:\bcuda|\bgpu|\bhip|\bcumem)[^\n]{0,120}?(?:error|fail|assert|success)[^\n]{0,120}?"
    rb"(?:[:'\"(\])]\s{0,3}|(?<=error )|(?<=failed )|(?<=failure ))out of memory\b(?!: ?\d))"
)
#: What an allocation of host memory has near its error.
_ON_HOST = re.compile(
    rb"pin[_ ]memory(?![\"']?\s*[=:])|(?m:^ +File \"[^\n]+\n +[^\n]*\bpin_memory=True)"
    rb"|[Pp]inned[_ ](?:host )?memory|PinnedMemory|CUDAPinned|CachingHostAllocator"
    rb"|DefaultCPUAllocator|(?:cuda|hip)Host(?:Alloc|Malloc|Register)|cudaMallocHost|[Hh]ostAlloc\b"
    rb"|cuMem(?:HostAlloc|AllocHost|HostRegister)|bytes on host|CUDA host alloc"
)
#: How many lines before an error may show that it is one of host memory: the last frames of a traceback.
_NEAR = 8
_PATTERNS = tuple((framework, re.compile(pattern)) for framework, pattern in _OF_DEVICES)
_ANY = re.compile(b"|".join(b"(?:" + pattern + b")" for _, pattern in _OF_DEVICES))


def framework_that_lacks(text: bytes, *, but: str | None = None) -> str | None:
    """Return the framework by whose text a device was out of memory, None if *text* has no such text.

    *but* begins the names of frameworks whose texts do not count.
    """
    if _ANY.search(text):
        for framework, pattern in _PATTERNS:
            if (but is None or not framework.startswith(but)) and pattern.search(text):
                return framework
    for found in _OF_CUDA.finditer(text):
        if not _ON_HOST.search(_near(text, found.start(), found.end())):
            return "CUDA 12"
    return None


def lacks_host_memory(text: bytes) -> bool:
    """Return whether *text* says that memory was lacking, and only that of the host."""
    return framework_that_lacks(text) is None and _OF_CUDA.search(text) is not None


def _near(text: bytes, start: int, end: int) -> bytes:
    """Return the lines of a match, and the ``_NEAR`` lines before it."""
    for _ in range(_NEAR + 1):
        start = text.rfind(b"\n", 0, max(start, 0))
        if start < 0:
            break
    after = text.find(b"\n", end)
    return text[start + 1 : len(text) if after < 0 else after]
