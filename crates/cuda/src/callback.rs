//! Host-callback detection, and panics of callbacks.
//!
//! A host callback must not call CUDA, and no panic of one may reach the driver's frames.
//!
//! Invariant: inside [`run_as_callback`] the thread calls no driver function through this crate.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host callback of this crate's: it must not call CUDA,
/// and a stream waits for it. Only the driver knows of another library's callbacks
/// ([`Error::is_in_callback`](crate::Error::is_in_callback)).
#[inline]
pub fn is_in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs `body` as a host callback.
pub(crate) fn run_as_callback<R>(body: impl FnOnce() -> R) -> R {
    struct RestoreFlag(bool);
    impl Drop for RestoreFlag {
        fn drop(&mut self) {
            IN_CALLBACK.set(self.0);
        }
    }
    let _restore = RestoreFlag(IN_CALLBACK.replace(true));
    body()
}

/// The message of the first callback that panicked.
pub(crate) type PanicMessage = Arc<Mutex<Option<String>>>;

/// Runs a callback's body so that no panic reaches the driver's frames.
pub(crate) fn run_catching_panic(body: impl FnOnce(), panicked: &Mutex<Option<String>>) {
    run_as_callback(|| {
        let Err(payload) = catch_unwind(AssertUnwindSafe(body)) else {
            return;
        };
        let message = message_of(&*payload);
        // Dropping the payload may panic too; that payload is leaked.
        if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            std::mem::forget(second);
        }
        lock(panicked).get_or_insert(message);
    });
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(message) = payload.downcast_ref::<&str>() {
        (*message).to_owned()
    } else if let Some(message) = payload.downcast_ref::<String>() {
        message.clone()
    } else {
        "it gave no message".to_owned()
    }
}
