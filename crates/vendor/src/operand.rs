//! Ranges of device memory that a call of a library reads or writes, and their checks.

use fercuda_cuda::{DeviceSlice, DeviceSliceMut};

use crate::error::{Error, Result};

/// Every address of a workspace, and of an operand by default, is a multiple of this.
pub(crate) const FULL_ALIGNMENT_BYTES: u64 = 256;

/// A range of device memory with its name in messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandRange {
    pub(crate) name: &'static str,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl OperandRange {
    pub(crate) fn of(name: &'static str, slice: &DeviceSlice<'_, u8>) -> Self {
        Self {
            name,
            address: slice.address().0,
            bytes: slice.len() as u64,
        }
    }

    pub(crate) fn of_mut(name: &'static str, slice: &DeviceSliceMut<'_, u8>) -> Self {
        Self {
            name,
            address: slice.address().0,
            bytes: slice.len() as u64,
        }
    }

    /// The first `bytes` of it, which the call accesses.
    pub(crate) fn prefix(self, operation: &'static str, bytes: u64) -> Result<Self> {
        if self.bytes < bytes {
            return Err(Error::refused(
                operation,
                format!(
                    "{} has {} bytes, and its layout reaches {bytes}",
                    self.name, self.bytes
                ),
            ));
        }
        Ok(Self { bytes, ..self })
    }

    /// Refuses an address that is no multiple of `alignment`.
    pub(crate) fn check_alignment(self, operation: &'static str, alignment: u64) -> Result<()> {
        if self.address.is_multiple_of(alignment) {
            return Ok(());
        }
        Err(Error::refused(
            operation,
            format!(
                "{} is at {:#x}, no multiple of {alignment} bytes",
                self.name, self.address
            ),
        ))
    }

    /// Refuses a range that shares bytes with `other`.
    pub(crate) fn check_apart(self, operation: &'static str, other: Self) -> Result<()> {
        let apart = self.bytes == 0
            || other.bytes == 0
            || self.address + self.bytes <= other.address
            || other.address + other.bytes <= self.address;
        match apart {
            true => Ok(()),
            false => Err(Error::refused(
                operation,
                format!(
                    "{} ({:#x}, {} bytes) and {} ({:#x}, {} bytes) overlap",
                    self.name, self.address, self.bytes, other.name, other.address, other.bytes
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64) -> OperandRange {
        OperandRange {
            name: "A",
            address,
            bytes,
        }
    }

    #[test]
    fn ranges_that_share_a_byte_overlap_and_neighbours_do_not() {
        let middle = range(100, 10);
        for (other, apart) in [
            (range(110, 5), true),
            (range(90, 10), true),
            (range(109, 1), false),
            (range(91, 10), false),
            (range(95, 100), false),
            (range(103, 2), false),
            (range(103, 0), true),
        ] {
            assert_eq!(
                middle.check_apart("test", other).is_ok(),
                apart,
                "{other:?}"
            );
            assert_eq!(
                other.check_apart("test", middle).is_ok(),
                apart,
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_range_is_as_long_as_its_layout_reaches() {
        assert_eq!(range(0, 10).prefix("test", 10).unwrap().bytes, 10);
        let error = range(0, 10).prefix("test", 11).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot test: A has 10 bytes, and its layout reaches 11"
        );
    }
}
