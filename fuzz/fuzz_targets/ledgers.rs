//! Words written into a ledger, and bytes that are one by chance.
#![no_main]

use std::cell::RefCell;

#[path = "../../crates/ledger/tests/suite/property.rs"]
mod property;
#[allow(dead_code, reason = "the ledger's own tests use the rest")]
#[path = "../../crates/ledger/tests/suite/support.rs"]
mod support;

thread_local! {
    static LEDGER: RefCell<property::PatchedLedger> =
        RefCell::new(property::PatchedLedger::new(property::valid()));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    property::use_all(bytes);
    LEDGER.with_borrow_mut(|ledger| ledger.holds_for(bytes));
});
