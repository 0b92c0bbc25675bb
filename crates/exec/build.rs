//! Compresses the kernels' PTX for the executable: text of instructions, of which a quarter is left.

use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let (from, to) = (Path::new("kernels/ptx"), env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", from.display());
    for target in fs::read_dir(from)? {
        let target = target?;
        let folder = Path::new(&to).join(target.file_name());
        fs::create_dir_all(&folder)?;
        for file in fs::read_dir(target.path())? {
            let file = file?;
            let mut compressed = DeflateEncoder::new(Vec::new(), Compression::best());
            compressed.write_all(&fs::read(file.path())?)?;
            let name = Path::new(&file.file_name()).with_extension("deflate");
            fs::write(folder.join(name), compressed.finish()?)?;
        }
    }
    Ok(())
}
