//! The property of any text; proptest (tests/any_text.rs) and cargo-fuzz (fuzz/) both call it.

use fercuda_ptx::check::{MAX_DIAGNOSTICS, check};
use fercuda_ptx::{parse, print};

/// Reads `text`. If it is PTX, what is printed must read back equal and print the same again;
/// if it is not, the error must point into the text.
pub(crate) fn holds_for(text: &str) {
    match parse(text) {
        Ok(module) => {
            let printed = print(&module);
            let again = match parse(&printed) {
                Ok(again) => again,
                Err(error) => {
                    panic!("what was printed does not read back: {error}\nprinted: {printed}")
                }
            };
            assert!(again == module, "this reads back different: {printed}");
            assert_eq!(print(&again), printed);
            assert!(check(&module).len() <= MAX_DIAGNOSTICS);
        }
        Err(error) => {
            let lines = text.bytes().filter(|&b| b == b'\n').count() + 1;
            assert!(
                (1..=lines).contains(&(error.line as usize)),
                "line {} of {lines}",
                error.line
            );
            assert!(error.column >= 1);
            assert!(
                error.excerpt.len() < 1000 && error.message.len() < 1000,
                "{error}"
            );
        }
    }
}
