//! Compiles the host's API description without `protoc`: protox parses it, tonic generates.

use std::error::Error;

const PROTO: &str = "penstock/host/v1/host.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/{PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
