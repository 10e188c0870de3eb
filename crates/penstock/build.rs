//! Compiles the host's gRPC service without `protoc`. The crate protox parses the service, and
//! tonic generates the code. The messages of the host's gRPC service are in
//! `penstock_control::api`.

use std::error::Error;

const PROTO: &str = "penstock/host/v1/host.proto";
const FOLDER: &str = "../control/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}/{PROTO}");
    let descriptors = protox::compile([PROTO], [FOLDER])?;
    tonic_prost_build::configure()
        .extern_path(".penstock.host.v1", "::penstock_control::api")
        .compile_fds(descriptors)?;
    Ok(())
}
