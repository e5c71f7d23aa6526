"""Tests of the texts by which programs say that a device was out of memory, and of those that say something else."""

from __future__ import annotations

import time

import pytest

from workers.run.memory_texts import _OF_DEVICES, framework_that_lacks, lacks_host_memory

#: Texts of real logs and issues, with the framework that the table names.
TEXTS = [
    ("PyTorch", "RuntimeError: CUDA out of memory. Tried to allocate 90.00 MiB (GPU 0; 24.00 GiB total capacity"),
    ("PyTorch", "2026-01-01 12:00:00 ERROR CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"),
    ("PyTorch", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB."),
    ("PyTorch", "terminate called after throwing an instance of 'c10::OutOfMemoryError'"),
    ("cuBLAS", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuBLAS", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("cuDNN 9", "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ("cuDNN 9", "cupyx.cufft.CuFFTError: CUFFT_ALLOC_FAILED"),
    ("CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,512 bytes (allocated so far: 0"),
    ("jaxlib 0.3", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 2002940 bytes."),
    ("jaxlib 0.3", "ValueError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12884901888 bytes."),
    ("jaxlib 0.1", "RuntimeError: Resource exhausted: Out of memory while trying to allocate 5520758552 bytes."),
    (
        "TensorFlow 1.8",
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n"
            "Detected at node 'model/dense/MatMul' defined at (most recent call last):\n"
            "OOM when allocating tensor with shape[16,64,64,64] and type float on "
            "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
        ),
    ),
    (
        "TensorFlow 2.18",
        (
            "Resource exhausted: failed to allocate memory\n"
            " [[{{node sequential/dense/MatMul}}]] [Op:__inference_train_function]"
        ),
    ),
    (
        "TensorFlow 2.18",
        "errors_impl.ResourceExhaustedError: Graph execution error:\nfailed to allocate memory\n\t [[{{node mul}}]]",
    ),
    ("TensorFlow 2.18", "ResourceExhaustedError: {{function_node __wrapped__Mul}} failed to allocate memory [Op:Mul]"),
    ("TensorFlow 2.10", "InternalError: Failed copying input tensor to GPU:0: Dst tensor is not initialized."),
    (
        "TensorFlow 1.8 and XLA",
        "W bfc_allocator.cc:275] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.43MiB.  Current",
    ),
    (
        "llama.cpp",
        "alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory",
    ),
    ("llama.cpp", "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 10345253120"),
    ("llama.cpp", "mxnet.base.MXNetError: pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory"),
    (
        "ONNX Runtime",
        (
            "RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bfc_arena.cc:376 void* onnxruntime::"
            "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 2147483648"
        ),
    ),
    ("PaddlePaddle", "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0"),
    ("rmm", "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp"),
    ("rmm", "MemoryError: std::bad_alloc: RMM failure at: pool_memory_resource.hpp:179: Maximum pool size exceeded"),
    ("TensorRT", "[E] [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)"),
    (
        "TensorRT",
        (
            "[E] [virtualMemoryBuffer.cpp::nvinfer1::StdVirtualMemoryBufferImpl::resizePhysical::154] Error Code 2: "
            "OutOfMemory (Requested size was 3356491776 bytes.)"
        ),
    ),
    ("TensorRT", "[TRT] [E] 2: [virtualMemoryBuffer.cpp::145] Error Code 2: OutOfMemory (no further information)"),
    ("Triton", "RuntimeError: Triton Error [CUDA]: out of memory"),
    ("vLLM", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"),
    (
        "vLLM",
        (
            "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: Free memory on device (3.22/4.0 "
            "GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease GPU memory"
        ),
    ),
    (
        "XGBoost",
        "xgboost.core.XGBoostError: device_helpers.cuh:414: Memory allocation error on worker 0: std::bad_alloc: ",
    ),
    ("RELION", "ERROR: CudaCustomAllocator out of memory\n [requestedSpace: 340660736 B]"),
    ("RELION", "ERROR: out of memory in /sw/relion/src/acc/cuda/custom_allocator.cuh at line 435 (error-code 2)"),
    ("Cycles", "System is out of GPU and shared host memory"),
    ("Cycles", "Out of memory in cuStreamCreate(&cuda_stream_, CU_STREAM_NON_BLOCKING) (cycles/device/cuda/queue.cpp"),
    ("Vulkan", "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    ("OpenCL", "clCreateBuffer(): CL_MEM_OBJECT_ALLOCATION_FAILURE"),
    ("LightGBM", "[LightGBM] [Fatal] [CUDA] out of memory /src/cuda/cuda_utils.cpp 38"),
    ("bitsandbytes", "Error out of memory at line 380 in file /mmfs1/bitsandbytes/csrc/ops.cu"),
    ("CUDA.jl", "ERROR: Out of GPU memory trying to allocate 8.000 GiB"),
    ("CUDA 12", "RuntimeError: CUDA error: out of memory"),
    ("CUDA 12", "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'"),
    ("CUDA 12", "misc/utils.cc:42 NCCL WARN Cuda failure 'out of memory'"),
    ("CUDA 12", "GPUassert: out of memory kernel.cu 42"),
    ("CUDA 12", 'CUDA error at main.cu:42 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"'),
    ("CUDA 12", "RuntimeError: CUDA failed with error out of memory"),
    ("CUDA 12", "CUDA failure 2: out of memory ; GPU=0 ; hostname=node1 ; expr=cudaStreamCreateWithFlags(&stream, 1)"),
    ("CUDA 12", "[TRT] safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)"),
    ("CUDA 12", "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory"),
    ("CUDA 12", "Check failed: error == cudaSuccess (2 vs. 0)  out of memory"),
    ("CUDA 12", "RuntimeError: CUDA Error 2, out of memory"),
    ("CUDA 12", "RuntimeError: TensorStorage tensor.h 168\ncuda failed with error 2 out of memory. use CUDA_LAUNCH_"),
    ("CUDA 12", "Caught a critical exception: cuda_malloc(): out of memory!"),
    ("CUDA 12", "RuntimeError: cuda runtime error (2) : out of memory at THCTensorRandom.cu:25"),
    ("CUDA 12", "StandardGpuResources: alloc fail type FlatData dev 0 (cudaMalloc error out of memory [2])"),
]


@pytest.mark.parametrize(("framework", "text"), TEXTS)
def test_the_text_of_a_framework_is_known(framework: str, text: str) -> None:
    """Each is known by itself, and among other lines."""
    for log in (text, f"epoch 1\n{text}\nbye"):
        known = framework_that_lacks(log.encode())
        assert known is not None
        assert known.startswith(framework)
    assert not lacks_host_memory(text.encode())


def test_each_text_of_the_table_has_a_real_example() -> None:
    """A text that nothing was taken from would be a guess."""
    known = {framework_that_lacks(text.encode()) for _, text in TEXTS}
    assert {framework for framework, _ in _OF_DEVICES} <= known


@pytest.mark.parametrize(
    "line",
    [
        "If you get CUDA out of memory errors, use a smaller --batch-size.",
        "sample 7: the old server was out of memory again",
        "Out of memory: Killed process 4711 (python) total-vm:120000kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.batch.",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688",
        "grpc error: RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)",
        "redis.exceptions.ResponseError: OOM command not allowed when used memory > 'maxmemory'.",
        (
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.28GiB with freed_by_count=0. The caller "
            "indicates that this is not a failure, but this may mean that there could be performance gains"
        ),
        "cuda errors: 0, out of memory: 0, retries: 3",
        "the OpenCL tests of error 2, out of memory, passed",
        "GPU failures: 0 (out of memory: 0)",
        "MemoryError: std::bad_alloc",
        "Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
        "OSError: [Errno 12] Cannot allocate memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 8589934592 bytes."
        ),
        "OOM when allocating tensor with shape[64,64] and type float on /device:CPU:0 by allocator mklcpu",
    ],
)
def test_an_ordinary_line_and_host_memory_are_no_such_text(line: str) -> None:
    """Data, hints, counters, other runtimes and the kernel speak of memory too."""
    assert framework_that_lacks(line.encode()) is None


@pytest.mark.parametrize(
    "text",
    [
        (
            '  File "torch/utils/data/_utils/pin_memory.py", line 98, in f\n    return data.pin_memory(device)\n'
            "           ^^^^^^^^^^^^^^^^^^^^^^^\nRuntimeError: CUDA error: out of memory"
        ),
        (
            "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\n"
            "Original Traceback (most recent call last):\ntorch.AcceleratorError: CUDA error: out of memory"
        ),
        (
            '  File "cupy/cuda/pinned_memory.pyx", line 31, in cupy.cuda.pinned_memory.PinnedMemory.__init__\n'
            '  File "runtime.pyx", line 146, in check\nCUDARuntimeError: cudaErrorMemoryAllocation: out of memory'
        ),
        "cuda_driver.cc:802] failed to alloc 34359738368 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        (
            '  File "train.py", line 9, in <module>\n    x = torch.empty(2**40, pin_memory=True)\n'
            "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\ntorch.AcceleratorError: CUDA error: out of memory"
        ),
        "pycuda._driver.MemoryError: cuMemHostAlloc failed: out of memory",
        "CUDA error: cudaMallocHost(&p, n) failed: out of memory",
    ],
)
def test_pinned_host_memory_is_no_memory_of_a_device(text: str) -> None:
    """CUDA has one error for both. The call, or the last frames of the traceback, show which one it was."""
    assert framework_that_lacks(text.encode()) is None
    assert lacks_host_memory(text.encode())


def test_a_setting_about_pinned_memory_hides_no_lack_of_device_memory() -> None:
    """Scripts print their arguments, and a line far above the error has nothing to do with it."""
    settings = "Namespace(pin_memory=True)", "  pin_memory: True", "{'pin_memory': True}", '"pin_memory": true,'
    for before in (*(f"{setting}\n" for setting in settings), "pin_memory\n" + "epoch\n" * 9):
        assert framework_that_lacks((before + "RuntimeError: CUDA error: out of memory").encode()) is not None


def test_any_text_is_searched_quickly() -> None:
    """The job writes the log: no text of 64 KiB may keep the worker busy."""
    for word in (b"cuda error ", b"cuda", b"cuda out of memory ", b"{{}} failed to allocate memory "):
        text = (word * 65536)[:65536]
        began_s = time.process_time()
        framework_that_lacks(text)
        assert time.process_time() - began_s < 5
