//! Error codes: their names, sentences for them, and the calling thread's last error.
//!
//! The runtime's codes have the numbers of the driver's, but for those that only the runtime has.
//!
//! Invariant: an error that ends a context stays a thread's last error until the device is reset;
//! any other is forgotten when `cudaGetLastError` has returned it.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_uint};

use fercuda_cuda_sys::types::CUresult;

/// A code of the runtime API.
#[expect(non_camel_case_types, reason = "CUDA's own spelling")]
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct cudaError_t(pub(crate) c_uint);

/// What a runtime function's body returns.
pub(crate) type CudaResult<T = ()> = Result<T, cudaError_t>;

macro_rules! errors {
    ($($constant:ident $name:literal $code:literal $text:literal;)*) => {
        impl cudaError_t {
            $(#[doc = concat!("`", $name, "`: ", $text, ".")]
            #[allow(dead_code, reason = "the list is whole")]
            pub(crate) const $constant: Self = Self($code);)*
        }

        /// Name and sentence of each code.
        static TABLE: &[(c_uint, &str, &str)] =
            &[$(($code, concat!($name, "\0"), concat!($text, "\0"))),*];
    };
}

errors! {
    SUCCESS "cudaSuccess" 0 "no error";
    INVALID_VALUE "cudaErrorInvalidValue" 1 "an argument is out of its range";
    MEMORY_ALLOCATION "cudaErrorMemoryAllocation" 2 "not enough memory";
    INITIALIZATION "cudaErrorInitializationError" 3 "the driver could not be initialised";
    UNLOADING "cudaErrorCudartUnloading" 4 "the driver is shutting down";
    PROFILER_DISABLED "cudaErrorProfilerDisabled" 5 "profiling is switched off";
    PROFILER_NOT_INITIALIZED "cudaErrorProfilerNotInitialized" 6 "the profiler was not initialised";
    PROFILER_STARTED "cudaErrorProfilerAlreadyStarted" 7 "the profiler runs already";
    PROFILER_STOPPED "cudaErrorProfilerAlreadyStopped" 8 "the profiler is stopped already";
    INVALID_CONFIGURATION "cudaErrorInvalidConfiguration" 9 "the device has no such grid or block";
    INVALID_PITCH "cudaErrorInvalidPitchValue" 12 "the pitch is out of its range";
    INVALID_SYMBOL "cudaErrorInvalidSymbol" 13 "no device variable is registered at this address";
    INVALID_HOST_POINTER "cudaErrorInvalidHostPointer" 16 "not a pointer to usable host memory";
    INVALID_DEVICE_POINTER "cudaErrorInvalidDevicePointer" 17 "not a pointer to device memory";
    INVALID_TEXTURE "cudaErrorInvalidTexture" 18 "not a texture";
    INVALID_TEXTURE_BINDING "cudaErrorInvalidTextureBinding" 19 "the texture is bound to nothing";
    INVALID_CHANNELS "cudaErrorInvalidChannelDescriptor" 20 "no such format of channels";
    INVALID_DIRECTION "cudaErrorInvalidMemcpyDirection" 21 "no such kind of copy";
    ADDRESS_OF_CONSTANT "cudaErrorAddressOfConstant" 22 "a constant's address was taken";
    TEXTURE_FETCH "cudaErrorTextureFetchFailed" 23 "a texture could not be read";
    TEXTURE_NOT_BOUND "cudaErrorTextureNotBound" 24 "a texture was read that is not bound";
    SYNCHRONIZATION "cudaErrorSynchronizationError" 25 "a wait failed";
    INVALID_FILTER "cudaErrorInvalidFilterSetting" 26 "values of this format cannot be filtered";
    INVALID_NORM "cudaErrorInvalidNormSetting" 27 "values of this format cannot be normalised";
    MIXED_DEVICE "cudaErrorMixedDeviceExecution" 28 "device and emulation code cannot be mixed";
    NOT_YET "cudaErrorNotYetImplemented" 31 "this function does not exist yet";
    VALUE_TOO_LARGE "cudaErrorMemoryValueTooLarge" 32 "the address does not fit";
    STUB "cudaErrorStubLibrary" 34 "the driver's library is a stub for linking";
    INSUFFICIENT_DRIVER "cudaErrorInsufficientDriver" 35
        "no driver was found, or it is older than this runtime library";
    NEWER_DRIVER "cudaErrorCallRequiresNewerDriver" 36 "the driver is too old for this function";
    INVALID_SURFACE "cudaErrorInvalidSurface" 37 "not a surface";
    DUPLICATE_VARIABLE "cudaErrorDuplicateVariableName" 43 "two variables have one name";
    DUPLICATE_TEXTURE "cudaErrorDuplicateTextureName" 44 "two textures have one name";
    DUPLICATE_SURFACE "cudaErrorDuplicateSurfaceName" 45 "two surfaces have one name";
    UNAVAILABLE "cudaErrorDevicesUnavailable" 46 "every device is busy or closed to this process";
    INCOMPATIBLE_CONTEXT "cudaErrorIncompatibleDriverContext" 49
        "the current context of the driver cannot be used by the runtime";
    MISSING_CONFIGURATION "cudaErrorMissingConfiguration" 52 "a launch was not configured";
    PRIOR_FAILURE "cudaErrorPriorLaunchFailure" 53 "an earlier launch failed";
    MAX_DEPTH "cudaErrorLaunchMaxDepthExceeded" 65 "kernels launched kernels too many levels deep";
    FILE_SCOPED_TEXTURE "cudaErrorLaunchFileScopedTex" 66
        "a kernel launched by a kernel uses a texture of file scope";
    FILE_SCOPED_SURFACE "cudaErrorLaunchFileScopedSurf" 67
        "a kernel launched by a kernel uses a surface of file scope";
    SYNC_DEPTH "cudaErrorSyncDepthExceeded" 68 "a kernel waited too many levels deep";
    PENDING_COUNT "cudaErrorLaunchPendingCountExceeded" 69 "too many launches of kernels wait";
    INVALID_FUNCTION "cudaErrorInvalidDeviceFunction" 98
        "no kernel is registered at this address, or its device code could not be loaded";
    NO_DEVICE "cudaErrorNoDevice" 100 "there is no device";
    INVALID_DEVICE "cudaErrorInvalidDevice" 101 "no device has this number";
    NOT_LICENSED "cudaErrorDeviceNotLicensed" 102 "the device has no licence";
    NOT_ESTABLISHED "cudaErrorSoftwareValidityNotEstablished" 103
        "the driver's integrity could not be verified";
    STARTUP "cudaErrorStartupFailure" 127 "the runtime could not be started";
    INVALID_IMAGE "cudaErrorInvalidKernelImage" 200 "the device code is malformed";
    DEVICE_UNINITIALIZED "cudaErrorDeviceUninitialized" 201 "no valid context is current";
    MAP_FAILED "cudaErrorMapBufferObjectFailed" 205 "a buffer could not be mapped";
    UNMAP_FAILED "cudaErrorUnmapBufferObjectFailed" 206 "a buffer could not be unmapped";
    ARRAY_MAPPED "cudaErrorArrayIsMapped" 207 "the array is mapped and cannot be destroyed";
    ALREADY_MAPPED "cudaErrorAlreadyMapped" 208 "the resource is mapped already";
    NO_IMAGE "cudaErrorNoKernelImageForDevice" 209
        "the program has no device code that this device can execute";
    ALREADY_ACQUIRED "cudaErrorAlreadyAcquired" 210 "the resource is acquired already";
    NOT_MAPPED "cudaErrorNotMapped" 211 "the resource is not mapped";
    NOT_MAPPED_ARRAY "cudaErrorNotMappedAsArray" 212 "the resource is not mapped as an array";
    NOT_MAPPED_POINTER "cudaErrorNotMappedAsPointer" 213 "the resource is not mapped as a pointer";
    ECC "cudaErrorECCUncorrectable" 214 "a memory error could not be corrected";
    UNSUPPORTED_LIMIT "cudaErrorUnsupportedLimit" 215 "the device has no such limit";
    IN_USE "cudaErrorDeviceAlreadyInUse" 216 "the context is current in another thread";
    PEER_UNSUPPORTED "cudaErrorPeerAccessUnsupported" 217 "the devices cannot access each other";
    INVALID_PTX "cudaErrorInvalidPtx" 218 "the PTX of the program has an error";
    INVALID_GRAPHICS "cudaErrorInvalidGraphicsContext" 219 "not a graphics context";
    NVLINK "cudaErrorNvlinkUncorrectable" 220 "an error of NVLink could not be corrected";
    NO_JIT "cudaErrorJitCompilerNotFound" 221 "there is no compiler of PTX";
    PTX_VERSION "cudaErrorUnsupportedPtxVersion" 222 "the PTX is of a newer version than the driver";
    JIT_DISABLED "cudaErrorJitCompilationDisabled" 223 "compiling PTX is switched off";
    AFFINITY "cudaErrorUnsupportedExecAffinity" 224 "the device has no such affinity";
    DEVICE_SYNC "cudaErrorUnsupportedDevSideSync" 225
        "kernels that wait for kernels of their own are not supported";
    CONTAINED "cudaErrorContained" 226 "an error was contained; the process has to end";
    INVALID_SOURCE "cudaErrorInvalidSource" 300 "the device code's source is malformed";
    FILE_NOT_FOUND "cudaErrorFileNotFound" 301 "no such file";
    OBJECT_SYMBOL "cudaErrorSharedObjectSymbolNotFound" 302 "a shared object lacks a symbol";
    OBJECT_INIT "cudaErrorSharedObjectInitFailed" 303 "a shared object could not be initialised";
    OPERATING_SYSTEM "cudaErrorOperatingSystem" 304 "a call of the operating system failed";
    INVALID_HANDLE "cudaErrorInvalidResourceHandle" 400 "no such stream, event or other object";
    ILLEGAL_STATE "cudaErrorIllegalState" 401 "the object is not in a state for this call";
    LOSSY "cudaErrorLossyQuery" 402 "the answer would have lost information";
    SYMBOL_NOT_FOUND "cudaErrorSymbolNotFound" 500 "the device code has no such name";
    NOT_READY "cudaErrorNotReady" 600 "the work has not ended yet";
    ILLEGAL_ADDRESS "cudaErrorIllegalAddress" 700 "a kernel accessed memory that it may not access";
    OUT_OF_RESOURCES "cudaErrorLaunchOutOfResources" 701
        "the launch needs more registers or shared memory than there are";
    LAUNCH_TIMEOUT "cudaErrorLaunchTimeout" 702 "a kernel ran longer than it may";
    INCOMPATIBLE_TEXTURING "cudaErrorLaunchIncompatibleTexturing" 703
        "the launch uses textures in another way than its context";
    PEER_ENABLED "cudaErrorPeerAccessAlreadyEnabled" 704 "the access is enabled already";
    PEER_NOT_ENABLED "cudaErrorPeerAccessNotEnabled" 705 "the access is not enabled";
    ACTIVE_PROCESS "cudaErrorSetOnActiveProcess" 708 "too late: the device is in use";
    CONTEXT_DESTROYED "cudaErrorContextIsDestroyed" 709 "the current context was destroyed";
    ASSERT "cudaErrorAssert" 710 "an assertion in a kernel failed";
    TOO_MANY_PEERS "cudaErrorTooManyPeers" 711 "too many devices access each other";
    REGISTERED "cudaErrorHostMemoryAlreadyRegistered" 712 "the host memory is registered already";
    NOT_REGISTERED "cudaErrorHostMemoryNotRegistered" 713 "the host memory is not registered";
    STACK "cudaErrorHardwareStackError" 714 "a kernel's stack is damaged or full";
    ILLEGAL_INSTRUCTION "cudaErrorIllegalInstruction" 715
        "a kernel executed an instruction that does not exist";
    MISALIGNED "cudaErrorMisalignedAddress" 716 "a kernel accessed a misaligned address";
    ADDRESS_SPACE "cudaErrorInvalidAddressSpace" 717
        "a kernel used an address of another state space";
    INVALID_PC "cudaErrorInvalidPc" 718 "a kernel jumped to where there is no code";
    LAUNCH_FAILURE "cudaErrorLaunchFailure" 719 "a kernel failed";
    TOO_LARGE "cudaErrorCooperativeLaunchTooLarge" 720
        "a cooperative launch has more blocks than run at once";
    TENSOR_LEAK "cudaErrorTensorMemoryLeak" 721 "a kernel ended without freeing tensor memory";
    NOT_PERMITTED "cudaErrorNotPermitted" 800 "this call is not permitted here";
    NOT_SUPPORTED "cudaErrorNotSupported" 801 "this function or option is not supported";
    NOT_READY_SYSTEM "cudaErrorSystemNotReady" 802 "the system is not ready";
    DRIVER_MISMATCH "cudaErrorSystemDriverMismatch" 803 "driver and kernel module do not match";
    COMPAT "cudaErrorCompatNotSupportedOnDevice" 804
        "the device does not support compatibility with older drivers";
    MPS_CONNECTION "cudaErrorMpsConnectionFailed" 805 "no connection to the MPS server";
    MPS_RPC "cudaErrorMpsRpcFailure" 806 "the MPS server did not answer";
    MPS_NOT_READY "cudaErrorMpsServerNotReady" 807 "the MPS server is not ready";
    MPS_CLIENTS "cudaErrorMpsMaxClientsReached" 808 "the MPS server has too many clients";
    MPS_CONNECTIONS "cudaErrorMpsMaxConnectionsReached" 809
        "the MPS server has too many connections";
    MPS_TERMINATED "cudaErrorMpsClientTerminated" 810 "the MPS server ended this client";
    CDP "cudaErrorCdpNotSupported" 811 "kernels that launch kernels are not supported";
    CDP_VERSION "cudaErrorCdpVersionMismatch" 812
        "the program was built for another version of launches by kernels";
    CAPTURE_UNSUPPORTED "cudaErrorStreamCaptureUnsupported" 900
        "this call is not permitted while a stream captures";
    CAPTURE_INVALIDATED "cudaErrorStreamCaptureInvalidated" 901
        "the capture is lost by an earlier error";
    CAPTURE_MERGE "cudaErrorStreamCaptureMerge" 902 "two captures would have been merged";
    CAPTURE_UNMATCHED "cudaErrorStreamCaptureUnmatched" 903
        "the capture did not begin in this stream";
    CAPTURE_UNJOINED "cudaErrorStreamCaptureUnjoined" 904
        "the capture has work in other streams that was not joined";
    CAPTURE_ISOLATION "cudaErrorStreamCaptureIsolation" 905
        "a dependency would have left the capture";
    CAPTURE_IMPLICIT "cudaErrorStreamCaptureImplicit" 906
        "the legacy default stream cannot take part in a capture";
    CAPTURED_EVENT "cudaErrorCapturedEvent" 907 "the event was last recorded in a capture";
    WRONG_THREAD "cudaErrorStreamCaptureWrongThread" 908 "another thread began the capture";
    TIMEOUT "cudaErrorTimeout" 909 "the wait took too long";
    UPDATE_FAILED "cudaErrorGraphExecUpdateFailure" 910
        "the graph differs too much to update an executable one by it";
    EXTERNAL_DEVICE "cudaErrorExternalDevice" 911 "a device outside of CUDA failed";
    CLUSTER_SIZE "cudaErrorInvalidClusterSize" 912 "the device has no such clusters";
    NOT_LOADED "cudaErrorFunctionNotLoaded" 913 "the function is not loaded";
    RESOURCE_TYPE "cudaErrorInvalidResourceType" 914 "no such type of resource";
    RESOURCE_CONFIGURATION "cudaErrorInvalidResourceConfiguration" 915
        "no such configuration of resources";
    UNKNOWN "cudaErrorUnknown" 999 "an unknown error";
    API_BASE "cudaErrorApiFailureBase" 10000 "an error of an old driver";
}

impl From<CUresult> for cudaError_t {
    fn from(result: CUresult) -> Self {
        Self(result.0)
    }
}

/// Errors after which a context returns nothing else.
const STICKY: &[c_uint] = &[
    214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721,
];

thread_local! {
    static LAST: Cell<cudaError_t> = const { Cell::new(cudaError_t::SUCCESS) };
}

/// Notes a call's error as the thread's last one.
pub(crate) fn note(error: cudaError_t) {
    if error != cudaError_t::SUCCESS {
        // Sticky errors are not replaced: a context that has failed returns that error alone.
        LAST.try_with(|last| {
            if !STICKY.contains(&last.get().0) {
                last.set(error);
            }
        })
        .ok();
    }
}

/// The thread's last error.
pub(crate) fn peek() -> cudaError_t {
    LAST.try_with(Cell::get).unwrap_or(cudaError_t::UNLOADING)
}

/// The thread's last error, which is forgotten unless it is one of those that stay.
pub(crate) fn take() -> cudaError_t {
    let last = peek();
    if !STICKY.contains(&last.0) {
        forget();
    }
    last
}

/// Forgets the last error, whichever it is.
pub(crate) fn forget() {
    LAST.try_with(|last| last.set(cudaError_t::SUCCESS)).ok();
}

fn entry(code: c_uint) -> Option<&'static (c_uint, &'static str, &'static str)> {
    TABLE.iter().find(|(number, ..)| *number == code)
}

/// The name of a code as a C string.
pub(crate) fn name(code: c_uint) -> *const c_char {
    text(entry(code).map_or("unrecognized error code\0", |it| it.1))
}

/// The sentence for a code as a C string.
pub(crate) fn sentence(code: c_uint) -> *const c_char {
    text(entry(code).map_or("unrecognized error code\0", |it| it.2))
}

/// The name of a code, for messages.
pub(crate) fn plain_name(code: cudaError_t) -> &'static str {
    entry(code.0).map_or("an unknown code", |it| it.1.trim_end_matches('\0'))
}

fn text(terminated: &'static str) -> *const c_char {
    CStr::from_bytes_with_nul(terminated.as_bytes()).map_or(core::ptr::null(), CStr::as_ptr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_and_a_sentence() {
        let mut codes: Vec<_> = TABLE.iter().map(|it| it.0).collect();
        codes.dedup();
        assert_eq!(codes.len(), TABLE.len());
        assert!(codes.is_sorted());
        for (code, name, sentence) in TABLE {
            assert!(name.starts_with("cuda") && name.ends_with('\0'), "{code}");
            assert!(sentence.len() > 5 && sentence.ends_with('\0'), "{code}");
        }
        assert_eq!(
            plain_name(cudaError_t::INVALID_VALUE),
            "cudaErrorInvalidValue"
        );
    }

    #[test]
    fn the_last_error_is_forgotten_when_it_is_taken_unless_it_ended_the_context() {
        note(cudaError_t::INVALID_VALUE);
        note(cudaError_t::SUCCESS);
        note(cudaError_t::NOT_READY);
        assert_eq!(peek(), cudaError_t::NOT_READY);
        assert_eq!(take(), cudaError_t::NOT_READY);
        assert_eq!(take(), cudaError_t::SUCCESS);
        note(cudaError_t::ILLEGAL_ADDRESS);
        note(cudaError_t::INVALID_VALUE);
        assert_eq!(take(), cudaError_t::ILLEGAL_ADDRESS);
        assert_eq!(take(), cudaError_t::ILLEGAL_ADDRESS);
        forget();
        assert_eq!(take(), cudaError_t::SUCCESS);
    }
}
