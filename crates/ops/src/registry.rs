//! Registry of ops: look-up by name.
//!
//! Elsewhere: the coverage table (`coverage`).

use std::sync::OnceLock;

use crate::error::OpError;
use crate::row::OpRow;
use crate::table;

/// All ops, by families.
pub fn rows() -> impl Iterator<Item = &'static OpRow> {
    table::PARTS.into_iter().flatten()
}

fn by_name() -> &'static [&'static OpRow] {
    static SORTED: OnceLock<Vec<&'static OpRow>> = OnceLock::new();
    SORTED.get_or_init(|| {
        let mut all: Vec<_> = rows().collect();
        all.sort_by_key(|row| row.name);
        all
    })
}

/// The op of that name.
///
/// # Errors
/// [`OpError::Unknown`], with names that have a part in common.
pub fn find(name: &str) -> Result<&'static OpRow, OpError> {
    let all = by_name();
    if let Ok(at) = all.binary_search_by_key(&name, |row| row.name) {
        return Ok(all[at]);
    }
    let part = |known: &str| {
        let parts = || name.split('_').filter(|part| part.len() > 2);
        parts().any(|part| known.contains(part)) || name.contains(known)
    };
    let near: Vec<&str> = all
        .iter()
        .map(|row| row.name)
        .filter(|known| part(known))
        .collect();
    let hint = match near.is_empty() {
        true => "one of docs/ops.md".to_owned(),
        false => near[..near.len().min(8)].join(", "),
    };
    let name = name.to_owned();
    Err(OpError::Unknown { name, hint })
}

/// The row of an op that `find` has found before.
pub(crate) fn row(name: &'static str) -> &'static OpRow {
    let all = by_name();
    let at = all.partition_point(|row| row.name < name);
    all[at]
}
