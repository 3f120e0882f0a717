//! Functions that exist and are refused by name: other libraries' objects, and NVIDIA's tables.
//!
//! Invariant: each returns `cudaErrorNotSupported` and says so once on standard error; none looks
//! at its arguments.

use crate::call::{guard, refuse};
use crate::error::cudaError_t;

macro_rules! refused {
    ($($name:ident)*) => {$(
        #[allow(non_snake_case, reason = "the runtime's own name")]
        // SAFETY: see `runtime_fns`; arguments in registers and on the caller's stack are ignored.
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> cudaError_t {
            guard(stringify!($name), false, || refuse(stringify!($name)))
        }
    )*};
}

refused! {
    // Memory and semaphores of Vulkan, Direct3D and NvSci.
    cudaDestroyExternalMemory cudaDestroyExternalSemaphore cudaDeviceGetNvSciSyncAttributes
    cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray
    cudaGraphAddExternalSemaphoresSignalNode cudaGraphAddExternalSemaphoresWaitNode
    cudaGraphExecExternalSemaphoresSignalNodeSetParams
    cudaGraphExecExternalSemaphoresWaitNodeSetParams
    cudaGraphExternalSemaphoresSignalNodeGetParams cudaGraphExternalSemaphoresSignalNodeSetParams
    cudaGraphExternalSemaphoresWaitNodeGetParams cudaGraphExternalSemaphoresWaitNodeSetParams
    cudaImportExternalMemory cudaImportExternalSemaphore
    cudaSignalExternalSemaphoresAsync cudaSignalExternalSemaphoresAsync_ptsz
    cudaWaitExternalSemaphoresAsync cudaWaitExternalSemaphoresAsync_ptsz
    // Graphics.
    cudaGraphicsMapResources cudaGraphicsResourceGetMappedMipmappedArray
    cudaGraphicsResourceGetMappedPointer cudaGraphicsResourceSetMapFlags
    cudaGraphicsSubResourceGetMappedArray cudaGraphicsUnmapResources cudaGraphicsUnregisterResource
    cudaGLGetDevices cudaGLMapBufferObject cudaGLMapBufferObjectAsync cudaGLRegisterBufferObject
    cudaGLSetBufferObjectMapFlags cudaGLSetGLDevice cudaGLUnmapBufferObject
    cudaGLUnmapBufferObjectAsync cudaGLUnregisterBufferObject cudaGraphicsGLRegisterBuffer
    cudaGraphicsGLRegisterImage
    cudaEGLStreamConsumerAcquireFrame cudaEGLStreamConsumerConnect
    cudaEGLStreamConsumerConnectWithFlags cudaEGLStreamConsumerDisconnect
    cudaEGLStreamConsumerReleaseFrame cudaEGLStreamProducerConnect cudaEGLStreamProducerDisconnect
    cudaEGLStreamProducerPresentFrame cudaEGLStreamProducerReturnFrame cudaEventCreateFromEGLSync
    cudaGraphicsEGLRegisterImage cudaGraphicsResourceGetMappedEglFrame
    cudaGraphicsVDPAURegisterOutputSurface cudaGraphicsVDPAURegisterVideoSurface
    cudaVDPAUGetDevice cudaVDPAUSetVDPAUDevice
    // Tables that NVIDIA does not document.
    cudaGetExportTable
}
