//! Buffers made for a call that may fail.

use fercuda_runtime::{BufferId, Session};

/// Buffers that are freed on drop unless they are kept.
pub(super) struct UnkeptBuffers<'s> {
    session: &'s Session,
    ids: Vec<BufferId>,
}

impl<'s> UnkeptBuffers<'s> {
    pub(super) fn of(session: &'s Session) -> Self {
        let ids = Vec::new();
        Self { session, ids }
    }

    pub(super) fn add(&mut self, id: BufferId) -> BufferId {
        self.ids.push(id);
        id
    }

    pub(super) fn keep(mut self) {
        self.ids.clear();
    }
}

impl Drop for UnkeptBuffers<'_> {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            // If the session has ended meanwhile, that is the error reported.
            drop(self.session.free(id));
        }
    }
}
