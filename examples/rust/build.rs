// SPDX-License-Identifier: Apache-2.0
// Generates the messages of proto/control.proto.
use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    let proto = "../../proto/control.proto";

    println!("cargo:rerun-if-changed={}", proto);
    std::fs::write(out.join("mod.rs"), "pub mod control;").unwrap();
    protobuf_codegen_pure::Codegen::new()
        .out_dir(out)
        .input(proto)
        .include("../../proto")
        .run()
        .expect("control.proto");
}
