//! Status codes of the driver, and results that carry them.

use fercuda_cuda_sys::types::CUresult;

pub(crate) type CuResult<T = ()> = Result<T, CUresult>;

/// The driver's codes, by their short names.
pub(crate) mod err {
    use fercuda_cuda_sys::types::CUresult as C;
    pub(crate) const INVALID_VALUE: C = C::CUDA_ERROR_INVALID_VALUE;
    pub(crate) const OUT_OF_MEMORY: C = C::CUDA_ERROR_OUT_OF_MEMORY;
    pub(crate) const NOT_INITIALIZED: C = C::CUDA_ERROR_NOT_INITIALIZED;
    pub(crate) const INVALID_DEVICE: C = C::CUDA_ERROR_INVALID_DEVICE;
    pub(crate) const INVALID_IMAGE: C = C::CUDA_ERROR_INVALID_IMAGE;
    pub(crate) const INVALID_CONTEXT: C = C::CUDA_ERROR_INVALID_CONTEXT;
    pub(crate) const NO_BINARY_FOR_GPU: C = C::CUDA_ERROR_NO_BINARY_FOR_GPU;
    pub(crate) const INVALID_PTX: C = C::CUDA_ERROR_INVALID_PTX;
    pub(crate) const UNSUPPORTED_PTX_VERSION: C = C::CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    pub(crate) const FILE_NOT_FOUND: C = C::CUDA_ERROR_FILE_NOT_FOUND;
    pub(crate) const OPERATING_SYSTEM: C = C::CUDA_ERROR_OPERATING_SYSTEM;
    pub(crate) const INVALID_HANDLE: C = C::CUDA_ERROR_INVALID_HANDLE;
    pub(crate) const ILLEGAL_STATE: C = C::CUDA_ERROR_ILLEGAL_STATE;
    pub(crate) const NOT_FOUND: C = C::CUDA_ERROR_NOT_FOUND;
    pub(crate) const NOT_READY: C = C::CUDA_ERROR_NOT_READY;
    pub(crate) const PEER_ALREADY_ENABLED: C = C::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    pub(crate) const PEER_NOT_ENABLED: C = C::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    pub(crate) const CONTEXT_IS_DESTROYED: C = C::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pub(crate) const HOST_ALREADY_REGISTERED: C = C::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pub(crate) const HOST_NOT_REGISTERED: C = C::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pub(crate) const COOPERATIVE_TOO_LARGE: C = C::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    pub(crate) const INVALID_CLUSTER: C = C::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    pub(crate) const NOT_PERMITTED: C = C::CUDA_ERROR_NOT_PERMITTED;
    pub(crate) const NOT_SUPPORTED: C = C::CUDA_ERROR_NOT_SUPPORTED;
    pub(crate) const CAPTURE_UNSUPPORTED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pub(crate) const CAPTURE_INVALIDATED: C = C::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    pub(crate) const CAPTURE_MERGE: C = C::CUDA_ERROR_STREAM_CAPTURE_MERGE;
    pub(crate) const CAPTURE_UNMATCHED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    pub(crate) const CAPTURE_UNJOINED: C = C::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    pub(crate) const CAPTURE_ISOLATION: C = C::CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    pub(crate) const CAPTURE_IMPLICIT: C = C::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    pub(crate) const CAPTURED_EVENT: C = C::CUDA_ERROR_CAPTURED_EVENT;
    pub(crate) const CAPTURE_WRONG_THREAD: C = C::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    pub(crate) const GRAPH_UPDATE_FAILURE: C = C::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    pub(crate) const UNKNOWN: C = C::CUDA_ERROR_UNKNOWN;
}
