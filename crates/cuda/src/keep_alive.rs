//! Values kept only to be dropped later.

use std::collections::HashSet;
use std::fmt;

use crate::callback::PanicMessage;

/// A value kept only to be dropped later.
pub(crate) trait KeepAlive: Send + Sync {}

impl<T: Send + Sync> KeepAlive for T {}

impl fmt::Debug for dyn KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepAlive")
    }
}

/// Resources that captured work refers to.
#[derive(Default)]
pub(crate) struct KeptResources {
    /// Addresses of the resources that are kept already.
    keys: HashSet<usize>,
    things: Vec<Box<dyn KeepAlive>>,
    panicked: PanicMessage,
}

impl fmt::Debug for KeptResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptResources")
            .field("things", &self.things.len())
            .finish_non_exhaustive()
    }
}

impl KeptResources {
    /// Keeps `thing` unless `key`, its address, is kept already; returns whether it is new.
    pub(crate) fn add(&mut self, key: usize, thing: impl KeepAlive + 'static) -> bool {
        let new = self.keys.insert(key);
        if new {
            self.things.push(Box::new(thing));
        }
        new
    }

    /// Keeps a resource that has no address of its own.
    pub(crate) fn add_anonymous(&mut self, thing: impl KeepAlive + 'static) {
        self.things.push(Box::new(thing));
    }

    /// The message of the first callback of the work that panicked.
    pub(crate) fn panicked(&self) -> &PanicMessage {
        &self.panicked
    }
}
