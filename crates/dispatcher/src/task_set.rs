//! Sets of task functions, and their loaded kernels.

use std::cell::Cell;
use std::sync::Mutex;

use fercuda_cuda::{Context, Error};
use fercuda_ptx::build::BuildError;

use crate::error::DispatchError;
use crate::kernel::{TaskKernel, kernel};
use crate::lock::lock;
use crate::options::DispatchOptions;
#[cfg(doc)]
use crate::task::TaskSpan;
use crate::task::{Task, TaskBody};

/// Task functions, by their numbers.
#[derive(Default)]
pub struct TaskSet {
    tasks: Vec<(String, TaskBody)>,
    /// Whether they are exactly those of [`TaskSet::standard`].
    pub(crate) is_standard: bool,
    /// Whether their bodies are writing a kernel right now.
    is_written: Cell<bool>,
    /// Their loaded kernels. See [`TaskSet::load`].
    loaded: KernelCache,
}

/// Loaded kernels of one set: one for each context and shape, loaded once. An owner of several
/// dispatchers shares one for the standard tasks ([`TaskSet::kernel_of`]).
#[derive(Default)]
pub struct KernelCache(Mutex<Vec<LoadedKernel>>);

/// A loaded kernel, with its context.
struct LoadedKernel {
    context: Context,
    kernel: TaskKernel,
}

impl std::fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(lock(&self.0).iter().map(|it| it.kernel.shape()))
            .finish()
    }
}

impl KernelCache {
    fn find(&self, context: &Context, options: &DispatchOptions) -> Option<TaskKernel> {
        let (all, shape) = (lock(&self.0), options.shape());
        let mut all = all.iter();
        let found = all.find(|it| it.context == *context && it.kernel.shape() == shape)?;
        Some(found.kernel.clone())
    }

    fn find_or_load(
        &self,
        set: &TaskSet,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<TaskKernel, DispatchError> {
        if let Some(kernel) = self.find(context, options) {
            return Ok(kernel);
        }
        // Outside the lock: bodies are user code, and loading code waits for the device.
        let text = options.listing(set)?;
        let kernel = TaskKernel::load(context, &text, options.shape())?;
        let first = LoadedKernel {
            context: context.clone(),
            kernel: kernel.clone(),
        };
        let reset = |it: &LoadedKernel| matches!(it.context.bind(), Err(Error::ContextReset));
        let mut all = lock(&self.0);
        // Another thread may have loaded it first: both work.
        all.push(first);
        let gone: Vec<LoadedKernel>;
        (gone, *all) = std::mem::take(&mut *all).into_iter().partition(reset);
        drop(all);
        drop(gone);
        Ok(kernel)
    }

    /// Drops the kernels: each is unloaded when no dispatcher uses it.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        drop(all);
    }
}

impl std::fmt::Debug for TaskSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.tasks.iter().map(|(name, _)| name))
            .finish()
    }
}

/// Number of a function in a [`TaskSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub u32);

impl TaskSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a function. All threads of a block run `body` together.
    ///
    /// # Safety
    /// The body accesses memory by [`TaskSpan`]s and its own shared memory only, loops with the
    /// task's loops only, has no barrier in them, and does not return, trap or let threads exit by
    /// themselves. The caller is responsible for anything else that it does: a fault of one task
    /// ends the kernel, and with it the context.
    #[expect(
        unsafe_code,
        reason = "only the author knows what a device function does"
    )]
    pub unsafe fn add(&mut self, name: &str, body: impl for<'k> Fn(&Task<'k>) + 'static) -> TaskId {
        // The loaded kernels lack it.
        self.loaded.clear();
        self.is_standard = false;
        self.tasks.push((name.to_owned(), Box::new(body)));
        TaskId((self.tasks.len() - 1) as u32)
    }

    /// Builds the kernel that runs these functions and loads it to the device, where it stays as
    /// long as the set: one for each context and each shape of rings and blocks. A dispatcher does
    /// so itself; a session's dispatcher keeps that of the standard tasks for the next one of the
    /// runtime's, until a reboot. To start a dispatcher while another kernel is resident, call this
    /// before: loading code waits for the device, and so for that kernel.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`], [`DispatchError::Cuda`].
    pub fn load(&self, context: &Context, options: &DispatchOptions) -> Result<(), DispatchError> {
        self.kernel(context, options).map(drop)
    }

    /// Returns the kernel, and loads it first if needed.
    ///
    /// # Errors
    /// As for [`TaskSet::load`].
    pub fn kernel(
        &self,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<TaskKernel, DispatchError> {
        self.loaded.find_or_load(self, context, options)
    }

    /// Returns the kernel, and loads it first if needed; for exactly the standard tasks it is in
    /// `kept`, and stays there.
    ///
    /// # Errors
    /// As for [`TaskSet::load`].
    pub fn kernel_of(
        &self,
        kept: &KernelCache,
        context: &Context,
        options: &DispatchOptions,
    ) -> Result<TaskKernel, DispatchError> {
        let own = self.loaded.find(context, options);
        match own {
            Some(kernel) => Ok(kernel),
            None if self.is_standard => kept.find_or_load(self, context, options),
            None => self.kernel(context, options),
        }
    }

    /// Runs the bodies to write the kernel.
    ///
    /// # Errors
    /// In a body of the set itself, which would recurse without end.
    pub(crate) fn write(
        &self,
        kernel: impl FnOnce(&[(String, TaskBody)]) -> Result<String, BuildError>,
    ) -> Result<String, DispatchError> {
        struct WritingGuard<'s>(&'s Cell<bool>);
        impl Drop for WritingGuard<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        if self.is_written.replace(true) {
            let why = "a task's body builds the kernel that it is part of".into();
            return Err(DispatchError::Value { why });
        }
        let _guard = WritingGuard(&self.is_written);
        Ok(kernel(&self.tasks)?)
    }

    /// Name of a function.
    pub fn name(&self, task: TaskId) -> Option<&str> {
        let (name, _) = self.tasks.get(task.0 as usize)?;
        Some(name)
    }
}

impl DispatchOptions {
    /// The kernel for `set`, as PTX.
    ///
    /// # Errors
    /// [`DispatchError::Value`], [`DispatchError::Build`].
    pub fn listing(&self, set: &TaskSet) -> Result<String, DispatchError> {
        self.check()?;
        let rings = (self.priorities, self.capacity);
        set.write(|tasks| kernel(tasks, rings, self.threads, self.idle_ns))
    }
}
