//! Compiles the descriptions of gRPC services without `protoc`: protox parses, tonic generates.

use std::error::Error;

const PROTO: &str = "penstock/fabric/v1/fabric.proto";
//! Compiles the part of etcd's interface that is used, without `protoc`.
const PROTO: &str = "etcd/rpc.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/{PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
