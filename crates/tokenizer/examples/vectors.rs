//! Comparison of tokens with llama.cpp's vectors: `vectors MODEL [FILE.inp FILE.out]`.
//!
//! The model is a GGUF file or a tokenizer.json. With that alone, each line of standard input is
//! encoded.
#![expect(clippy::print_stdout, reason = "a program")]

use std::error::Error;
use std::io::{BufRead, stdin};

use fercuda_modelfile::Gguf;
use fercuda_tokenizer::{Special, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("the name of a model is missing")?;
    let file = std::fs::read(&model)?;
    let tokenizer = match model.ends_with(".json") {
        true => Tokenizer::from_json(&file)?,
        false => Tokenizer::from_gguf(&Gguf::parse(&file[..])?)?,
    };
    let (Some(texts), Some(wanted)) = (args.next(), args.next()) else {
        for line in stdin().lock().lines() {
            let tokens = tokenizer.encode(&line?, Special::AsText)?;
            println!("{tokens:?} {:?}", tokenizer.decode(&tokens));
        }
        return Ok(());
    };
    let texts = std::fs::read_to_string(texts)?;
    let wanted = std::fs::read_to_string(wanted)?;
    let (mut same, mut all) = (0, 0);
    for (text, wanted) in texts.split("\n__ggml_vocab_test__\n").zip(wanted.lines()) {
        let wanted: Result<Vec<u32>, _> = wanted.split_whitespace().map(str::parse).collect();
        let (tokens, wanted) = (tokenizer.encode_part(text, Special::AsText)?, wanted?);
        all += 1;
        match tokens == wanted {
            true => same += 1,
            false => println!("{text:?}\n  is     {tokens:?}\n  wanted {wanted:?}"),
        }
    }
    println!("{model}: {same} of {all}");
    Ok(())
}
