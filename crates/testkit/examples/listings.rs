//! Listing of every finished kernel as PTX in a folder, and in `launches.json` how to launch
//! each for one large shape: `listings FOLDER [sm_90]`.

use std::error::Error;
use std::path::PathBuf;

use fercuda_ptx::build::Arch;
use fercuda_testkit::kernels::attention::{self, HeadDim};
use fercuda_testkit::kernels::gemm::{self, Tile};
use fercuda_testkit::kernels::{KernelDesc, layernorm, q4_k, softmax, vector_add};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("usage: listings FOLDER [sm_NN]")?);
    let arch = args
        .next()
        .map_or(Ok(80), |a| a.trim_start_matches("sm_").parse())?;
    let arch = Arch::new(arch);
    let mut launches = Vec::new();
    let mut write = |listing: Listing| -> Result<(), Box<dyn Error>> {
        let file = folder.join(&listing.entry).with_extension("ptx");
        launches.push(listing.launch);
        Ok(std::fs::write(file, listing.text)?)
    };

    let row = "4096 rows of 4096 values";
    let (rows, cols) = (4096, 4096);
    let (small, large) = (512, 8192);
    let of_tile = |tile, n| {
        let shape = gemm::GemmExtents { m: n, n, k: n };
        listing(gemm::f32(arch, tile)?, &format!("{n}^3"), &shape)
    };
    let heads = |dim| {
        let shape = attention::AttentionExtents {
            heads: 64,
            q_len: 2048,
            kv_len: 2048,
        };
        let text = "64 heads, 2048 queries and keys";
        listing(attention::f32(arch, dim)?, text, &shape)
    };
    let n = 1 << 26;
    write(listing(
        vector_add::f32(arch)?,
        "2^26 values",
        &vector_add::VectorExtents { n },
    )?)?;
    write(listing(
        softmax::f32(arch)?,
        row,
        &softmax::RowExtents { rows, cols },
    )?)?;
    write(listing(
        layernorm::f32(arch)?,
        row,
        &layernorm::RowExtents { rows, cols },
    )?)?;
    write(listing(
        q4_k::dequantize_f32(arch)?,
        "2^18 blocks",
        &q4_k::Q4KExtents { blocks: 1 << 18 },
    )?)?;
    write(of_tile(Tile::Small, small)?)?;
    write(of_tile(Tile::Large, large)?)?;
    for dim in [HeadDim::D32, HeadDim::D64, HeadDim::D128] {
        write(heads(dim)?)?;
    }
    let json = format!("{{\n{}\n}}\n", launches.join(",\n"));
    Ok(std::fs::write(folder.join("launches.json"), json)?)
}

struct Listing {
    entry: String,
    text: String,
    /// A member of a JSON object.
    launch: String,
}

fn listing<S>(desc: KernelDesc<S>, what: &str, shape: &S) -> Result<Listing, Box<dyn Error>> {
    let launch = desc.launch(shape)?;
    // Numbers and arrays of them print as JSON does; the texts need no escapes.
    let launch = format!(
        "  \"{}\": {{\"shape\": \"{what}\", \"grid\": {:?}, \"block\": {:?}, \"shared_bytes\": {}}}",
        desc.entry, launch.grid, launch.block, launch.dynamic_shared_bytes
    );
    Ok(Listing {
        text: fercuda_ptx::print(&desc.module),
        entry: desc.entry,
        launch,
    })
}
