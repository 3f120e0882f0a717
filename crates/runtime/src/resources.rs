//! Resources that a session owns besides its buffers: graph caches, argument blocks, compiled
//! expressions and dispatchers.
//!
//! Invariant: they are torn down with the session, even if handles to them remain. Elsewhere:
//! captures (`session_graphs`), evaluation (`expressions`), starting a dispatcher (`resident`).

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use fercuda_cuda::Context;
use fercuda_dispatcher::TaskQueue;
use fercuda_jit::Compiler;

use crate::error::Result;
use crate::graphs::{GraphCache, Key};
use crate::lock::lock;

/// Resources that are torn down with their session.
#[derive(Default)]
pub(crate) struct SessionResources {
    resources: Mutex<Vec<Weak<dyn TearDown>>>,
    compiler: Mutex<Option<Arc<Compiler>>>,
    dispatchers: Mutex<Vec<Weak<TaskQueue>>>,
}

/// A resource that is torn down with its session, even if handles to it remain.
pub(crate) trait TearDown: Send + Sync {
    fn tear_down(&self);
}

impl<K: Key + Send + Sync> TearDown for GraphCache<K> {
    fn tear_down(&self) {
        GraphCache::end(self);
    }
}

impl fmt::Debug for SessionResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionResources").finish_non_exhaustive()
    }
}

impl SessionResources {
    pub(crate) fn keep_until_end(&self, it: Weak<dyn TearDown>) {
        let mut all = lock(&self.resources);
        all.retain(|it| it.strong_count() > 0);
        all.push(it);
    }

    pub(crate) fn keep(&self, dispatcher: &Arc<TaskQueue>) {
        let mut all = lock(&self.dispatchers);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(dispatcher));
    }

    /// Requests the dispatchers to drain: to run the submitted tasks, and exit.
    pub(crate) fn request_drain(&self) {
        for dispatcher in lock(&self.dispatchers).iter().filter_map(Weak::upgrade) {
            dispatcher.request_drain();
        }
    }

    /// Takes the live dispatchers, for the session's teardown.
    pub(crate) fn take_dispatchers(&self) -> Vec<Arc<TaskQueue>> {
        let all = std::mem::take(&mut *lock(&self.dispatchers));
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// The session's compiler, created by the first call.
    pub(crate) fn compiler(&self, context: &Context) -> Result<Arc<Compiler>> {
        let mut compiler = lock(&self.compiler);
        Ok(match &*compiler {
            Some(compiler) => compiler.clone(),
            None => compiler.insert(Arc::new(Compiler::new(context)?)).clone(),
        })
    }

    pub(crate) fn tear_down(&self) {
        let resources = std::mem::take(&mut *lock(&self.resources));
        let resources: Vec<Arc<dyn TearDown>> =
            resources.iter().filter_map(Weak::upgrade).collect();
        resources.iter().for_each(|it| it.tear_down());
        let compiler = lock(&self.compiler).take();
        drop(compiler);
    }
}
