//! Vectors of texts that are given as numbers of tokens, for comparisons with other programs.
//!
//! `embeddings MODEL 5,6,7 8,9`: a line for each text.

use std::path::Path;

use fercuda_llm::{Embedder, EmbedderConfig};
use fercuda_modelfile::ModelFile;
use fercuda_runtime::{Runtime, RuntimeConfig};

#[expect(clippy::print_stdout, reason = "an example's results")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("a model's file or folder is missing")?;
    let texts: Result<Vec<Vec<u32>>, _> = args
        .map(|text| text.split(',').map(str::parse).collect())
        .collect();
    let runtime = Runtime::open(RuntimeConfig::default())?;
    let file = ModelFile::open(Path::new(&model))?;
    let config = EmbedderConfig::default();
    let mut embedder = Embedder::load(&runtime, &file, &config, |_, _| {})?;
    for vector in embedder.embed(&texts?)? {
        let elements: Vec<String> = vector.iter().map(f32::to_string).collect();
        println!("{}", elements.join(" "));
    }
    Ok(())
}
