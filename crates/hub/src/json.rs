//! JSON files beside weights, of bounded size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use crate::error::SourceError;

/// The largest file that is read: tokenizers have up to some 40 MB.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a file of a folder, if it is there.
pub(crate) fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, SourceError> {
    let path = folder.join(name);
    let wrong = |what: String| SourceError::Folder {
        what: format!("{}: {what}", path.display()),
        advice: "the model's own file of this name",
    };
    match fs::metadata(&path) {
        Ok(it) if !it.is_file() => return Err(wrong("it is no regular file".to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.to_string())),
    }
    let mut bytes = Vec::new();
    let file = File::open(&path).and_then(|it| it.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    match file {
        Err(error) => Err(wrong(error.to_string())),
        Ok(count) if count as u64 > MOST_BYTES => {
            Err(wrong(format!("it has more than {MOST_BYTES} bytes")))
        }
        Ok(_) => Ok(Some(bytes)),
    }
}

/// Reads a JSON file of a folder, if it is there.
pub(crate) fn value(folder: &Path, name: &str) -> Result<Option<Value>, SourceError> {
    let Some(bytes) = read(folder, name)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| SourceError::Folder {
        what: format!("{}: {error}", folder.join(name).display()),
        advice: "the model's own file of this name",
    })
}
