//! Kernel launches on a session's buffers, which are named by their handles.
//!
//! Invariant: handles are resolved once, before anything is launched. What a launch retains lives
//! as long as the launch does.

use std::fmt;
use std::sync::Arc;

use fercuda_cuda::{DeviceBuffer, Function, KernelArg, Launch, Stream};

use crate::error::Result;
use crate::jobs::Job;
use crate::session::{LaunchArgument, Session};

/// A resolved argument.
enum ResolvedArgument {
    Memory(DeviceBuffer<u8>),
    Number(KernelArg<'static>),
    Structure(Arc<[u8]>),
}

impl ResolvedArgument {
    fn value(&self) -> KernelArg<'_> {
        match self {
            Self::Memory(memory) => KernelArg::buffer(memory),
            Self::Number(number) => *number,
            Self::Structure(bytes) => KernelArg::bytes(bytes),
        }
    }
}

/// A launch with resolved arguments, to be captured or run later.
pub struct PreparedLaunch {
    function: Function,
    launch: Launch,
    arguments: Vec<ResolvedArgument>,
}

impl fmt::Debug for PreparedLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedLaunch").finish_non_exhaustive()
    }
}

impl PreparedLaunch {
    /// Launches the kernel, or has it captured. May be called repeatedly.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda): the driver refuses the launch.
    ///
    /// # Safety
    /// As for [`Launch::run`]; for a capture, each time that the graph is launched.
    #[expect(unsafe_code, reason = "only the caller knows what a kernel accesses")]
    pub unsafe fn run(&self, stream: &Stream) -> Result<()> {
        let values: Vec<KernelArg<'_>> =
            self.arguments.iter().map(ResolvedArgument::value).collect();
        // SAFETY: the promise of this function's caller.
        Ok(unsafe { self.launch.run(&self.function, stream, values.as_slice()) }?)
    }
}

impl Session {
    /// Launches a kernel behind the session's work. Each handle is resolved once; if one is stale,
    /// nothing is launched.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale); [`Error::Ended`](crate::Error::Ended);
    /// [`Error::Cuda`](crate::Error::Cuda) if the arguments do not fit the kernel, or the driver
    /// refuses.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    #[expect(unsafe_code, reason = "only the caller knows what a kernel accesses")]
    pub unsafe fn launch(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[LaunchArgument],
    ) -> Result<()> {
        let prepared = self.prepare_launch(function, launch, arguments)?;
        // SAFETY: the promise of this function's caller.
        self.core
            .in_order(move |stream: &Stream| unsafe { prepared.run(stream) })
    }

    /// Launches a kernel as a job, which is done when the kernel is.
    ///
    /// # Errors
    /// As for [`Session::launch`]; the driver's refusal and the kernel's failure are reported by
    /// the job.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    #[expect(unsafe_code, reason = "only the caller knows what a kernel accesses")]
    pub unsafe fn launch_async(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[LaunchArgument],
    ) -> Result<Job<()>> {
        let prepared = self.prepare_launch(function, launch, arguments)?;
        // SAFETY: the promise of this function's caller.
        self.submit(move |stream: &Stream| unsafe { prepared.run(stream) })
    }

    /// Resolves a launch's arguments and retains them. Nothing is launched; arguments that do not
    /// fit the kernel are reported by the launch.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale); [`Error::Ended`](crate::Error::Ended);
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn prepare_launch(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[LaunchArgument],
    ) -> Result<PreparedLaunch> {
        let hold = |argument: &LaunchArgument| {
            Ok(match argument {
                LaunchArgument::Buffer(id) => ResolvedArgument::Memory(self.memory(*id)?),
                LaunchArgument::Number(number) => ResolvedArgument::Number(*number),
                LaunchArgument::Structure(bytes) => ResolvedArgument::Structure(bytes.clone()),
            })
        };
        Ok(PreparedLaunch {
            function: function.clone(),
            launch,
            arguments: arguments.iter().map(hold).collect::<Result<_>>()?,
        })
    }
}
