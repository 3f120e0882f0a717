//! Models: one file, or a folder of several, with all their tensors by name.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result, shown};
use crate::gguf::Gguf;
use crate::json::{JsonCursor, with_texts_for_no_numbers};
use crate::kinds::TensorType;
use crate::mapping::FileMapping;
use crate::safetensors::Safetensors;

/// The end of the name of a file that says which tensor is in which file.
const INDEX: &str = ".safetensors.index.json";
/// The largest index and configuration that are read.
const INDEX_BYTES: u64 = 256 << 20;
const CONFIG_BYTES: u64 = 16 << 20;
/// The most files of one model.
const FILES: usize = 4096;

/// A model whose files are mapped into memory.
#[derive(Debug)]
pub struct ModelFile {
    parts: Vec<ModelPart>,
    /// Part and place there of each tensor, ordered by name.
    by_name: Vec<(u32, u32)>,
    config: Option<Value>,
}

/// One file of a model.
#[derive(Debug)]
pub struct ModelPart {
    path: PathBuf,
    content: PartContent,
}

/// A parsed file of a model.
#[derive(Debug)]
pub enum PartContent {
    /// Of llama.cpp.
    Gguf(Gguf<FileMapping>),
    /// Of PyTorch programs.
    Safetensors(Safetensors<FileMapping>),
}

/// A tensor as a file has it.
#[derive(Clone, Debug)]
pub struct StoredTensor<'a> {
    /// Its name; in GGUF what is no UTF-8 is replaced.
    pub name: Cow<'a, str>,
    /// The type of its elements.
    pub kind: TensorType,
    /// The outermost dimension first.
    pub shape: Vec<u64>,
    /// Its file.
    pub file: &'a Path,
    /// Offset of its data there.
    pub at: u64,
    /// Its data.
    pub bytes: &'a [u8],
}

impl StoredTensor<'_> {
    /// Number of its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Its elements as f32.
    ///
    /// # Errors
    /// As of [`TensorType::decode`].
    pub fn decode(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.elements() as usize];
        self.kind.decode(self.bytes, &mut values)?;
        Ok(values)
    }
}

impl ModelPart {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it.
    pub fn content(&self) -> &PartContent {
        &self.content
    }

    fn open(path: &Path) -> Result<ModelPart> {
        Self::of_bytes(path, FileMapping::open(path)?)
    }

    fn of_bytes(path: &Path, map: FileMapping) -> Result<ModelPart> {
        let content = parse(map).map_err(|error| error.in_file(path))?;
        Ok(ModelPart {
            path: path.to_owned(),
            content,
        })
    }

    fn mapping(&self) -> &FileMapping {
        match &self.content {
            PartContent::Gguf(file) => file.bytes(),
            PartContent::Safetensors(file) => file.bytes(),
        }
    }

    fn tensor_count(&self) -> usize {
        match &self.content {
            PartContent::Gguf(file) => file.tensors().len(),
            PartContent::Safetensors(file) => file.tensors().len(),
        }
    }

    fn nth(&self, index: usize) -> Option<StoredTensor<'_>> {
        match &self.content {
            PartContent::Gguf(file) => file.nth_tensor(index).map(|it| StoredTensor {
                name: it.name(),
                kind: it.kind(),
                shape: it.shape(),
                file: &self.path,
                at: it.at(),
                bytes: it.bytes(),
            }),
            PartContent::Safetensors(file) => file.nth_tensor(index).map(|it| {
                let (kind, at, bytes) = (it.kind(), it.at(), it.bytes());
                let (name, shape) = it.into_parts();
                StoredTensor {
                    name,
                    kind,
                    shape,
                    file: &self.path,
                    at,
                    bytes,
                }
            }),
        }
    }
}

fn parse(map: FileMapping) -> Result<PartContent> {
    let bytes = map.as_ref();
    match bytes {
        [b'G', b'G', b'U', b'F', ..] => Ok(PartContent::Gguf(Gguf::parse(map)?)),
        [b'P', b'K', 3, 4, ..] | [0x80, 2, ..] => Err(Error::unsupported(
            "a pickle of PyTorch, which may contain programs",
            "the model's safetensors files, or torch.load and safetensors.torch.save_file",
        )),
        // The length of a header is at most 100 MB, and a brace follows it.
        [_, _, _, 0..8, 0, 0, 0, 0, b'{', ..] => {
            Ok(PartContent::Safetensors(Safetensors::parse(map)?))
        }
        _ if bytes.starts_with(b"GG") || bytes.len() < 16 => {
            let what = format!("{} bytes that are no model", bytes.len());
            Err(Error::malformed(0, what))
        }
        _ if matches!(
            bytes,
            [
                b'l' | b'f' | b't' | b'a',
                b'm' | b'j' | b'l',
                b'g',
                b'g',
                ..
            ]
        ) =>
        {
            Ok(PartContent::Gguf(Gguf::parse(map)?))
        }
        _ => Err(Error::unsupported(
            format!("a file that begins with {:02x?}", &bytes[..16]),
            "a GGUF or safetensors file, or a folder of the latter",
        )),
    }
}

impl ModelFile {
    /// Opens a GGUF file, a safetensors file, the index of several, or a folder of one of these.
    /// The first file of a split GGUF model opens the others too.
    ///
    /// # Errors
    /// [`Error::Io`]; those of parsing, with the file; [`Error::Mismatch`] if files of one model
    /// contradict each other.
    pub fn open(path: &Path) -> Result<ModelFile> {
        let metadata = fs::metadata(path).map_err(|source| Error::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        let folder = match metadata.is_dir() {
            true => path,
            false => path.parent().unwrap_or(Path::new("")),
        };
        let is_index = path.to_string_lossy().ends_with(INDEX);
        let (paths, index) = match (metadata.is_dir(), is_index) {
            (true, _) => files_of_folder(path)?,
            (false, true) => (Vec::new(), Some(path.to_owned())),
            (false, false) => (vec![path.to_owned()], None),
        };
        let mut model = match index {
            Some(index) => {
                let text = read_text(&index, INDEX_BYTES)?;
                let shards = files_of_index(&text).map_err(|error| error.in_file(&index))?;
                let paths: Vec<_> = shards.iter().map(|name| folder.join(name)).collect();
                let model = ModelFile::of_paths(&paths)?;
                let checked = model.check_index(&text);
                checked.map_err(|error| error.in_file(&index))?;
                model
            }
            None => ModelFile::of_paths(&paths)?,
        };
        let config = folder.join("config.json");
        if config.is_file() && matches!(model.parts[0].content, PartContent::Safetensors(_)) {
            let text = read_text(&config, CONFIG_BYTES)?;
            let text = with_texts_for_no_numbers(&text);
            let parsed = serde_json::from_str(&text).map_err(|error| {
                Error::mismatch(error.to_string(), "the model's own config.json").in_file(&config)
            });
            model.config = Some(parsed?);
        }
        Ok(model)
    }

    fn of_paths(paths: &[PathBuf]) -> Result<ModelFile> {
        let mut parts = Vec::new();
        for path in paths {
            parts.push(ModelPart::open(path)?);
        }
        let [first, ..] = &parts[..] else {
            let what = "an index without files";
            return Err(Error::mismatch(what, "the model's own index"));
        };
        if let (1, PartContent::Gguf(file)) = (parts.len(), &first.content) {
            for path in split_paths(file, &first.path)? {
                parts.push(ModelPart::open(&path)?);
            }
        }
        Self::of_parts(parts)
    }

    fn of_parts(parts: Vec<ModelPart>) -> Result<ModelFile> {
        let by_name = order_by_name(&parts)?;
        Ok(ModelFile {
            parts,
            by_name,
            config: None,
        })
    }

    /// A model of one file whose bytes are in memory; `name` stands for it in errors.
    ///
    /// # Errors
    /// As of [`ModelFile::open`], but for [`Error::Io`].
    pub fn from_bytes(name: &Path, bytes: Vec<u8>) -> Result<ModelFile> {
        let part = ModelPart::of_bytes(name, FileMapping::from(bytes))?;
        Self::of_parts(vec![part])
    }

    /// Every tensor that the index names is in the file that it names.
    fn check_index(&self, text: &str) -> Result<()> {
        let mut cursor = JsonCursor::new(text.as_bytes(), 0, 0);
        cursor.members(|cursor, key_at| {
            if cursor.key(key_at) != "weight_map" {
                return cursor.skip();
            }
            cursor.members(|cursor, key_at| {
                let name = cursor.key(key_at);
                let file = cursor.string()?;
                let found = self.tensor(&name).ok();
                let found = found.and_then(|it| it.file.file_name());
                match found.is_some_and(|it| it == file.as_ref()) {
                    true => Ok(()),
                    false => Err(Error::mismatch(
                        format!(
                            "tensor {} is not in {}, as the index says",
                            shown(name.as_bytes()),
                            shown(file.as_bytes())
                        ),
                        "all files of one version of the model",
                    )),
                }
            })
        })
    }

    /// The files, in the order of their names.
    pub fn parts(&self) -> &[ModelPart] {
        &self.parts
    }

    /// The first file, if it is a GGUF file: it has the metadata.
    pub fn gguf(&self) -> Option<&Gguf<FileMapping>> {
        match self.parts.first().map(|part| &part.content) {
            Some(PartContent::Gguf(file)) => Some(file),
            _ => None,
        }
    }

    /// The folder's `config.json`, beside safetensors files.
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.by_name.len()
    }

    /// All tensors in the files' order.
    pub fn tensors(&self) -> impl Iterator<Item = StoredTensor<'_>> {
        let of_part = |part: &'_ ModelPart| 0..part.tensor_count();
        self.parts
            .iter()
            .flat_map(move |part| of_part(part).filter_map(|index| part.nth(index)))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::NoTensor`].
    pub fn tensor(&self, name: &str) -> Result<StoredTensor<'_>> {
        let found = self
            .by_name
            .binary_search_by(|at| self.name(*at).as_ref().cmp(name));
        let at = found.unwrap_or_else(|at| at);
        let (part, index) = self.by_name.get(at).copied().unwrap_or_default();
        let tensor = self.parts[part as usize].nth(index as usize);
        match (tensor, found) {
            (Some(tensor), Ok(_)) => Ok(tensor),
            (near, _) => Err(Error::NoTensor {
                name: name.chars().take(200).collect(),
                count: self.by_name.len(),
                near: near.map_or(String::new(), |it| format!("; one is {:?}", it.name)),
            }),
        }
    }

    /// Begins to read tensors whose names begin so, without waiting for them: for those that are
    /// used next.
    pub fn prefetch(&self, prefix: &str) {
        let first = self.by_name.partition_point(|at| *self.name(*at) < *prefix);
        for at in &self.by_name[first..] {
            let part = &self.parts[at.0 as usize];
            let Some(tensor) = part.nth(at.1 as usize) else {
                return;
            };
            if !tensor.name.starts_with(prefix) {
                return;
            }
            let begin = tensor.at as usize;
            part.mapping().prefetch(begin..begin + tensor.bytes.len());
        }
    }

    fn name(&self, (part, index): (u32, u32)) -> Cow<'_, str> {
        self.parts[part as usize].name(index)
    }

    /// The elements of a tensor as f32, as its file has it. Of checkpoints that spread a quantised
    /// weight over several tensors, [`ModelFile::read_weight`] has the weight.
    ///
    /// # Errors
    /// [`Error::NoTensor`], and as of [`TensorType::decode`].
    pub fn read_tensor(&self, name: &str) -> Result<Vec<f32>> {
        self.tensor(name)?.decode()
    }
}

impl ModelPart {
    fn name(&self, index: u32) -> Cow<'_, str> {
        self.nth(index as usize)
            .map_or(Cow::Borrowed(""), |it| it.name)
    }
}

/// Tensors of all parts by name. Fails if two have one.
fn order_by_name(parts: &[ModelPart]) -> Result<Vec<(u32, u32)>> {
    let mut order = Vec::with_capacity(parts.iter().map(ModelPart::tensor_count).sum());
    for (part, of) in parts.iter().enumerate() {
        order.extend((0..of.tensor_count() as u32).map(|index| (part as u32, index)));
    }
    let name = |at: &(u32, u32)| parts[at.0 as usize].name(at.1);
    order.sort_unstable_by(|a, b| name(a).cmp(&name(b)).then(a.cmp(b)));
    for pair in order.windows(2) {
        if name(&pair[0]) == name(&pair[1]) {
            let files = [pair[0], pair[1]].map(|at| parts[at.0 as usize].path.display());
            let what = format!(
                "tensor {:?} is in {} and in {}",
                name(&pair[0]),
                files[0],
                files[1]
            );
            return Err(Error::mismatch(what, "the files of one model alone"));
        }
    }
    Ok(order)
}

/// The files to open in a folder, or the index that names them.
fn files_of_folder(folder: &Path) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let failed = |source| Error::Io {
        action: "list",
        path: folder.to_owned(),
        source,
    };
    let (mut safetensors, mut gguf, mut indices) = (Vec::new(), Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Hidden ones are others' work in progress.
        let list = match &*name {
            name if name.starts_with('.') => continue,
            name if name.ends_with(INDEX) => &mut indices,
            name if name.ends_with(".safetensors") => &mut safetensors,
            name if name.ends_with(".gguf") && !is_later_split(name) => &mut gguf,
            _ => continue,
        };
        list.push(path);
    }
    safetensors.sort();
    let usual = folder.join("model.safetensors");
    let several = |what: &str, files: &[PathBuf]| {
        let what = format!("{} has {} {what}", folder.display(), files.len());
        Err(Error::mismatch(what, "the name of one of them"))
    };
    match (&indices[..], &safetensors[..], &gguf[..]) {
        ([_], _, _) => Ok((Vec::new(), indices.pop())),
        ([], files, _) if files.contains(&usual) => Ok((vec![usual], None)),
        ([], [_, ..], _) => match safetensors.len() <= FILES {
            true => Ok((safetensors, None)),
            false => several("safetensors files", &safetensors),
        },
        ([], [], [_]) => Ok((gguf, None)),
        ([], [], []) => {
            let what = format!("{} has no safetensors or GGUF file", folder.display());
            Err(Error::unsupported(
                what,
                "the folder that the model's files are in",
            ))
        }
        ([], [], _) => several("GGUF models", &gguf),
        (_, _, _) => several("indices of safetensors files", &indices),
    }
}

/// The files that an index names, each once: names in its own folder.
fn files_of_index(text: &str) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let mut cursor = JsonCursor::new(text.as_bytes(), 0, 0);
    cursor.members(|cursor, key_at| {
        if cursor.key(key_at) != "weight_map" {
            return cursor.skip();
        }
        cursor.members(|cursor, _| {
            let name = cursor.string()?;
            let is_plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "..";
            if !is_plain {
                return Err(cursor.malformed(format!(
                    "{} is no name of a file beside it",
                    shown(name.as_bytes())
                )));
            }
            if !files.contains(name.as_ref()) {
                files.insert(name.into_owned());
            }
            match files.len() <= FILES {
                true => Ok(()),
                false => Err(cursor.malformed(format!("more than {FILES} files"))),
            }
        })
    })?;
    cursor.expect_end()?;
    Ok(files)
}

fn read_text(path: &Path, most: u64) -> Result<String> {
    let failed = |source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > most {
        let what = format!("{} bytes, at most {most} are read", metadata.len());
        return Err(Error::unsupported(what, "a regular file of that size").in_file(path));
    }
    fs::read_to_string(path).map_err(failed)
}

/// Numbers in the name of a file of a split model: `name-00001-of-00003.gguf`.
fn split_numbers(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let is_number = |it: &str| it.len() == 5 && it.bytes().all(|byte| byte.is_ascii_digit());
    let both = is_number(number) && is_number(count);
    let numbers = (number.parse().ok(), count.parse().ok());
    match numbers {
        (Some(number), Some(count)) if both => Some((prefix, number, count)),
        _ => None,
    }
}

fn is_later_split(name: &str) -> bool {
    split_numbers(name).is_some_and(|(_, number, _)| number != 1)
}

/// The other files of a split GGUF model.
fn split_paths(file: &Gguf<FileMapping>, path: &Path) -> Result<Vec<PathBuf>> {
    let number = |key| file.get(key).and_then(|it| it.as_u64());
    let count = number("split.count").unwrap_or(0);
    if count <= 1 {
        return Ok(Vec::new());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let split = split_numbers(&name);
    let split =
        split.filter(|it| it.1 == 1 && u64::from(it.2) == count && number("split.no") == Some(0));
    let Some((prefix, _, count)) = split.filter(|it| it.2 as usize <= FILES) else {
        let what = format!("{name} is a file of a model of {count}, and not the first by its name");
        return Err(Error::mismatch(
            what,
            "the file ...-00001-of-....gguf, with all beside it",
        ));
    };
    let others = (2..=count).map(|number| {
        let name = format!("{prefix}-{number:05}-of-{count:05}.gguf");
        path.with_file_name(name)
    });
    Ok(others.collect())
}
