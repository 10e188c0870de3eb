//! Compiles the gRPC services without `protoc`: protox parses and tonic generates code.

use std::error::Error;

/// Penstock's own interface, client and server.
const FABRIC: &str = "penstock/fabric/v1/fabric.proto";
/// Interface of a Penstock daemon as a switch, client and server.
const SWITCH: &str = "penstock/switch/v1/switch.proto";
/// The used part of etcd's interface, client only.
const ETCD: &str = "etcd/rpc.proto";
/// OpenConfig's interface to switches. Tests implement the server.
const GNMI: &str = "github.com/openconfig/gnmi/proto/gnmi/gnmi.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    for (proto, server) in [(FABRIC, true), (SWITCH, true), (ETCD, false), (GNMI, true)] {
        let descriptors = protox::compile([proto], ["proto"])?;
        let mut generator = tonic_prost_build::configure().build_server(server);
        if proto == GNMI {
            // The comments of this file are not valid for rustdoc.
            generator = generator.disable_comments(["."]);
        }
        generator.compile_fds(descriptors)?;
    }
    Ok(())
}
