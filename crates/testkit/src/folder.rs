//! Folders of tests.

use std::path::{Path, PathBuf};

use crate::filetest::{self, FileTest, HeaderError};

/// A folder that is not there, or a file in it that is no test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// Reading failed.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A header is wrong.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// `corpus`, `planted`, `defects` or `programs` of this crate's sources.
pub fn of_crate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every `.cu` file of `folder`, by name.
///
/// # Errors
/// [`FolderError`], for the first file that cannot be used.
pub fn read(folder: &Path) -> Result<Vec<FileTest>, FolderError> {
    let unreadable = |path: &Path, source| FolderError::Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| unreadable(folder, e))? {
        let path = entry.map_err(|e| unreadable(folder, e))?.path();
        if path.extension().is_some_and(|e| e == "cu") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|p| read_file(p)).collect()
}

/// One file.
///
/// # Errors
/// [`FolderError`].
pub fn read_file(path: &Path) -> Result<FileTest, FolderError> {
    let source = std::fs::read_to_string(path).map_err(|source| FolderError::Unreadable {
        path: path.to_path_buf(),
        source,
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(filetest::parse(&name, &source)?)
}
