//! Readers that are private to their crates, included as their sources, with the properties that
//! the mutations of those crates try too.
#![allow(dead_code, reason = "its crate uses more of it")]

#[path = "../../crates/cli/src/replay"]
mod replay {
    mod history;
    mod html;
    mod live;
    mod log;
    mod pickle;
    pub(crate) mod property;
    mod row;
    mod snapshot;
    mod trace;
}

#[path = "../../crates/cli/src/terminal.rs"]
mod terminal;

#[path = "../../crates/cli/src/vram/snapshot"]
#[cfg(feature = "files")]
mod snapshot {
    mod format;
    mod members;
    pub(crate) mod property;
    mod verified;
}

#[path = "../../crates/cache/src/entry.rs"]
mod entry;

#[path = "../../crates/cache/src/property.rs"]
mod entry_property;

#[path = "../../crates/softgpu/src/device/fatbin.rs"]
mod fatbin;

/// Reads an entry of the cache of compiled programs.
pub fn cache_entry(bytes: &[u8]) {
    entry_property::holds_for(bytes);
}

/// Reads a container of images.
pub fn image(bytes: &[u8]) {
    if let Ok(text) = fatbin::ptx(bytes, 90) {
        assert!(text.len() <= fatbin::MAX_TEXT);
    }
}

/// Reads a memory snapshot of PyTorch.
pub fn pickle(bytes: &[u8]) {
    replay::property::holds_for_pickle(bytes);
}

/// Reads a log of allocations.
pub fn trace(bytes: &[u8]) {
    replay::property::holds_for_trace(bytes);
}

/// Verifies a snapshot of files.
#[cfg(feature = "files")]
pub fn snapshot(bytes: &[u8]) {
    thread_local! {
        static FILE: std::cell::RefCell<snapshot::property::SnapshotInput> =
            std::cell::RefCell::new(snapshot::property::SnapshotInput::new());
    }
    FILE.with_borrow_mut(|file| file.holds_for(bytes));
}
