//! Compiles the host's gRPC service without `protoc`. The crate protox parses the service, and
//! tonic generates the code. The messages of the host's gRPC service are in
//! `penstock_control::api`.

use std::error::Error;
use std::path::Path;

use protox::Compiler;

const PROTO: &str = "penstock/host/v1/host.proto";
const FOLDER: &str = "../control/proto";
/// Folder with the services of the controller and of a Penstock daemon that acts as a switch.
const FABRIC: &str = "../controller/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}/{PROTO}");
    let descriptors = protox::compile([PROTO], [FOLDER])?;
    tonic_prost_build::configure()
        .extern_path(".penstock.host.v1", "::penstock_control::api")
        .compile_fds(descriptors)?;
    describe()
}

/// Writes the descriptors of all services, from which a server describes itself.
fn describe() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FABRIC}/penstock");
    let mut compiler = Compiler::new([FOLDER, FABRIC])?;
    compiler.include_imports(true);
    let services = [PROTO, "penstock/fabric/v1/fabric.proto", "penstock/switch/v1/switch.proto"];
    compiler.open_files(services)?;
    let file = Path::new(&std::env::var("OUT_DIR")?).join("penstock.bin");
    std::fs::write(file, compiler.encode_file_descriptor_set())?;
    Ok(())
}
