//! Launches on a session's buffers, which are named by their handles.
//!
//! Invariant: handles are looked up once, before anything is launched; what a launch holds
//! stays as long as the launch does.

use std::fmt;
use std::sync::Arc;

use fercuda_cuda::{DeviceBuffer, Function, KernelArg, Launch, Stream};

use crate::error::Result;
use crate::jobs::Job;
use crate::session::{Argument, Session};

/// An argument that was looked up.
enum Held {
    Memory(DeviceBuffer<u8>),
    Number(KernelArg<'static>),
    Structure(Arc<[u8]>),
}

impl Held {
    fn value(&self) -> KernelArg<'_> {
        match self {
            Self::Memory(memory) => KernelArg::buffer(memory),
            Self::Number(number) => *number,
            Self::Structure(bytes) => KernelArg::bytes(bytes),
        }
    }
}

/// A launch with all that it needs, for a capture or for later.
pub struct PreparedLaunch {
    function: Function,
    launch: Launch,
    arguments: Vec<Held>,
}

impl fmt::Debug for PreparedLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedLaunch").finish_non_exhaustive()
    }
}

impl PreparedLaunch {
    /// Launches it, or has it captured; as often as one likes.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda): what the driver refuses.
    ///
    /// # Safety
    /// As for [`Launch::run`]; of a capture, each time that the graph is launched.
    #[expect(unsafe_code, reason = "only who knows a kernel knows what it touches")]
    pub unsafe fn run(&self, stream: &Stream) -> Result<()> {
        let values: Vec<KernelArg<'_>> = self.arguments.iter().map(Held::value).collect();
        // SAFETY: the promise of this function's caller.
        Ok(unsafe { self.launch.run(&self.function, stream, values.as_slice()) }?)
    }
}

impl Session {
    /// Launches a kernel behind the session's work. Each handle is looked up once; if one
    /// names nothing, nothing is launched.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale); [`Error::Ended`](crate::Error::Ended); [`Error::Cuda`](crate::Error::Cuda) if the arguments do not fit the
    /// kernel, or the driver refuses.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    #[expect(unsafe_code, reason = "only who knows a kernel knows what it touches")]
    pub unsafe fn launch(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        let it = self.prepare_launch(function, launch, arguments)?;
        // SAFETY: the promise of this function's caller.
        self.core
            .in_order(move |stream: &Stream| unsafe { it.run(stream) })
    }

    /// The same as a job, which is done when the kernel is.
    ///
    /// # Errors
    /// As for [`Session::launch`]; what the driver refuses, and what the kernel fails with,
    /// is the job's.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    #[expect(unsafe_code, reason = "only who knows a kernel knows what it touches")]
    pub unsafe fn launch_async(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<Job<()>> {
        let it = self.prepare_launch(function, launch, arguments)?;
        // SAFETY: the promise of this function's caller.
        self.submit(move |stream: &Stream| unsafe { it.run(stream) })
    }

    /// Looks the arguments of a launch up and holds them; nothing is launched, and what does not
    /// fit the kernel is told when it is.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::Error::Stale); [`Error::Ended`](crate::Error::Ended); [`Error::Forked`](crate::Error::Forked).
    pub fn prepare_launch(
        &self,
        function: &Function,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<PreparedLaunch> {
        let hold = |argument: &Argument| {
            Ok(match argument {
                Argument::Buffer(id) => Held::Memory(self.memory(*id)?),
                Argument::Number(number) => Held::Number(*number),
                Argument::Structure(bytes) => Held::Structure(bytes.clone()),
            })
        };
        Ok(PreparedLaunch {
            function: function.clone(),
            launch,
            arguments: arguments.iter().map(hold).collect::<Result<_>>()?,
        })
    }
}
