//! Compiles the descriptions of gRPC services without `protoc`: protox parses, tonic generates.

use std::error::Error;

const PROTO: &str = "penstock/fabric/v1/fabric.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/{PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
