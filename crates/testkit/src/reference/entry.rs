//! Entry of the table of references: a run's name, its inputs and its expected outputs.

use crate::data::{Expected, LaunchInputs};
use crate::rng::RecordedRng;

/// Computes the expected outputs of one `run` of a header.
pub struct Reference {
    /// The run's name.
    pub run: &'static str,
    /// Fills the inputs that the header calls `made`.
    pub make: Option<fn(&mut LaunchInputs, &mut RecordedRng)>,
    /// From inputs to outputs.
    pub expect: fn(&LaunchInputs, &mut Expected),
}

impl Reference {
    pub(super) const fn new(
        run: &'static str,
        expect: fn(&LaunchInputs, &mut Expected),
    ) -> Reference {
        Reference {
            run,
            make: None,
            expect,
        }
    }

    pub(super) const fn made(
        run: &'static str,
        make: fn(&mut LaunchInputs, &mut RecordedRng),
        expect: fn(&LaunchInputs, &mut Expected),
    ) -> Reference {
        Reference {
            run,
            make: Some(make),
            expect,
        }
    }
}
