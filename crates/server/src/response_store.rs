//! Responses that later requests go on with, in memory, within bounds.
//!
//! Invariant: there are as many as `MOST_RESPONSES` and bytes of them as `MOST_BYTES` at most; the
//! oldest ones give way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use fercuda_tokenizer::ChatValue;
use serde_json::Value;

/// Most responses that are kept.
const MOST_RESPONSES: usize = 4096;
/// Most bytes of all of them, as JSON.
const MOST_BYTES: usize = 64 << 20;

/// A response with its conversation.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    /// As its request was answered.
    pub(crate) response: Value,
    /// Messages up to it and with it, but for instructions.
    pub(crate) messages: Vec<ChatValue>,
}

#[derive(Debug, Default)]
struct StoreState {
    all: HashMap<String, (Arc<StoredResponse>, usize)>,
    /// Names, the oldest first; also some that were deleted.
    order: VecDeque<String>,
    bytes: usize,
}

/// The responses that are kept.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    state: Mutex<StoreState>,
}

impl StoreState {
    fn remove(&mut self, id: &str) -> bool {
        match self.all.remove(id) {
            Some((_, bytes)) => {
                self.bytes -= bytes;
                true
            }
            None => false,
        }
    }
}

impl ResponseStore {
    fn state(&self) -> MutexGuard<'_, StoreState> {
        // A panic while it was held has left it whole: each change is one step.
        self.state.lock().unwrap_or_else(|it| it.into_inner())
    }

    /// Keeps a response; one that is larger than all may be together is not kept.
    pub(crate) fn keep(&self, id: &str, stored: StoredResponse) {
        let messages = stored
            .messages
            .iter()
            .map(|it| it.to_json().to_string().len());
        let bytes = stored.response.to_string().len() + messages.sum::<usize>();
        if bytes > MOST_BYTES {
            return;
        }
        let mut state = self.state();
        while state.order.len() >= MOST_RESPONSES || state.bytes + bytes > MOST_BYTES {
            let Some(oldest) = state.order.pop_front() else {
                break;
            };
            state.remove(&oldest);
        }
        state.bytes += bytes;
        state.order.push_back(id.to_owned());
        state.all.insert(id.to_owned(), (Arc::new(stored), bytes));
    }

    /// The response of this name.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<StoredResponse>> {
        self.state().all.get(id).map(|it| Arc::clone(&it.0))
    }

    /// Forgets a response; whether it was there.
    pub(crate) fn delete(&self, id: &str) -> bool {
        let mut state = self.state();
        let is_there = state.remove(id);
        if is_there {
            state.order.retain(|it| it != id);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> StoredResponse {
        StoredResponse {
            response: Value::Null,
            messages: vec![ChatValue::message("user", &"x".repeat(bytes))],
        }
    }

    #[test]
    fn the_oldest_give_way_to_new_ones_by_number_and_by_bytes() {
        let store = ResponseStore::default();
        for number in 0..MOST_RESPONSES + 5 {
            store.keep(&number.to_string(), stored(1));
        }
        let is_there = |number: usize| store.find(&number.to_string()).is_some();
        assert!(!is_there(4) && is_there(5) && is_there(MOST_RESPONSES + 4));
        assert!(store.delete("5") && !store.delete("5") && !is_there(5));
        store.keep("large", stored(MOST_BYTES - 1000));
        assert!(store.find("large").is_some());
        let state = store.state();
        assert!(state.bytes <= MOST_BYTES && state.all.len() < 100);
        assert_eq!(state.all.len(), state.order.len());
        drop(state);
        store.keep("larger", stored(MOST_BYTES));
        assert!(store.find("larger").is_none() && store.find("large").is_some());
    }
}
