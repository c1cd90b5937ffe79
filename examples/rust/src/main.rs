// SPDX-License-Identifier: Apache-2.0
// A worker in Rust over the control socket: ttrpc, generated code and mmap.
//
// Build and run (Debian: cargo, librust-ttrpc-dev):
//
//     cargo build --offline
//     target/debug/ringside-worker SOCKET send ROUTE    a float32 [80, 3000] written in place, then sent on a route
//     target/debug/ringside-worker SOCKET receive       the next message of the stage's inbox
//     target/debug/ringside-worker SOCKET call ROUTE    calls the method Scale of a stage with such a tensor
//     target/debug/ringside-worker SOCKET serve         answers one call: Scale doubles the tensor
use std::fs::OpenOptions;
use std::os::unix::io::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use protobuf::Message;

#[allow(warnings)]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/mod.rs"));
}
use messages::control as ringside; // its Message is not protobuf's
use messages::control::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const TIMEOUT_NS: i64 = 10_000_000_000;

struct Sidecar(ttrpc::Client);

impl Sidecar {
    fn call<Answer: Message>(&self, method: &str, request: &dyn Message) -> Result<Answer> {
        let mut call = ttrpc::Request::new();
        call.set_service("ringside.v1.Control".to_string());
        call.set_method(method.to_string());
        call.set_timeout_nano(TIMEOUT_NS);
        call.set_payload(request.write_to_bytes()?);
        match self.0.request(call) {
            Ok(answer) => Ok(Answer::parse_from_bytes(answer.get_payload())?),
            Err(ttrpc::Error::RpcStatus(status)) => Err(status.get_message().into()), // "NAME: what was wrong"
            Err(error) => Err(error.into()),
        }
    }
}

/// Maps a body file whole: slots begin at multiples of 4 KiB, and pages may be larger. The mapping stays until the end.
fn mapped(path: &str, writable: bool) -> Result<*mut u8> {
    let file = OpenOptions::new().read(true).write(writable).open(path)?;
    let bytes = file.metadata()?.len() as usize;
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if at == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(at as *mut u8)
}

fn options() -> Options {
    let mut options = Options::new();
    options.set_metadata(br#"{"from":"rust"}"#.to_vec());
    options.set_metadata_kind(MetadataKind::JSON);
    options
}

/// A loan that is written where it lies.
fn filled(sidecar: &Sidecar, number: impl Fn(usize) -> f32) -> Result<Lease> {
    let mut mel = Tensor::new();
    mel.set_dtype(Dtype::FLOAT32);
    mel.set_shape(vec![80, 3000]);
    let mut request = LoanRequest::new();
    request.mut_tensors().push(mel);
    request.set_metadata_bytes(128);
    let loan: LoanResponse = sidecar.call("Loan", &request)?;

    let tensor = &loan.get_tensors()[0];
    let at = (loan.get_slot_offset() + tensor.get_offset()) as usize;
    let data = unsafe {
        std::slice::from_raw_parts_mut(mapped(loan.get_body_path(), true)?.add(at) as *mut f32, 80 * 3000)
    };
    for (i, x) in data.iter_mut().enumerate() {
        *x = number(i);
    }
    Ok(loan.get_lease().clone())
}

fn send(sidecar: &Sidecar, route: &str) -> Result<()> {
    let mut request = SendRequest::new();
    request.set_lease(filled(sidecar, |i| i as f32 / 2.0)?);
    request.set_route(route.to_string());
    request.set_options(options());
    let sent: SendResponse = sidecar.call("Send", &request)?;
    println!("sent as ticket {:#x}", sent.get_ticket());
    Ok(())
}

fn data_of(message: &ringside::Message) -> Result<&[f32]> {
    let tensor = &message.get_tensors()[0];
    let at = (message.get_slot_offset() + tensor.get_offset()) as usize;
    unsafe {
        let start = mapped(message.get_body_path(), false)?.add(at) as *const f32;
        Ok(std::slice::from_raw_parts(start, tensor.get_bytes() as usize / 4))
    }
}

fn next(sidecar: &Sidecar) -> Result<ringside::Message> {
    let mut request = ReceiveRequest::new();
    request.set_request_id(1);
    Ok(sidecar.call::<ReceiveResponse>("Receive", &request)?.take_message())
}

fn release(sidecar: &Sidecar, message: &ringside::Message) -> Result<()> {
    let mut request = LeaseRequest::new();
    request.set_lease(message.get_lease().clone());
    sidecar.call::<Empty>("Release", &request)?;
    Ok(())
}

fn print_and_release(sidecar: &Sidecar, message: &ringside::Message) -> Result<()> {
    let tensor = &message.get_tensors()[0];
    let sum: f64 = data_of(message)?.iter().map(|&x| f64::from(x)).sum();
    println!(
        "received {} {:?} sum {:.0} {}",
        format!("{:?}", tensor.get_dtype()).to_lowercase(),
        tensor.get_shape(),
        sum,
        String::from_utf8_lossy(message.get_metadata())
    );
    release(sidecar, message)
}

fn call(sidecar: &Sidecar, route: &str) -> Result<()> {
    let mut request = CallRequest::new();
    request.set_lease(filled(sidecar, |i| i as f32 / 2.0)?);
    request.set_route(route.to_string());
    request.set_method("Scale".to_string());
    request.set_options(options());
    let response: CallResponse = sidecar.call("Call", &request)?;
    print_and_release(sidecar, response.get_message())
}

fn serve(sidecar: &Sidecar) -> Result<()> {
    let request = next(sidecar)?;
    let mut reply = ReplyRequest::new();
    reply.set_request(request.get_lease().clone());
    if request.get_method() == "Scale" {
        let data = data_of(&request)?;
        reply.set_reply(filled(sidecar, |i| 2.0 * data[i])?);
        reply.set_options(options());
    } else {
        reply.set_status(12); // UNIMPLEMENTED
        reply.set_text(format!("no method {:?}; there is: Scale", request.get_method()));
    }
    sidecar.call::<Empty>("Reply", &reply)?;
    release(sidecar, &request)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments.len() < 3 {
        return Err("usage: ringside-worker SOCKET send ROUTE | receive | call ROUTE | serve".into());
    }
    let socket = UnixStream::connect(arguments[1])?; // ttrpc 0.5 itself knows abstract addresses only
    let sidecar = Sidecar(ttrpc::Client::new(socket.into_raw_fd()));
    let mut attach = AttachRequest::new();
    attach.set_name("rust".to_string());
    sidecar.call::<AttachResponse>("Attach", &attach)?;
    match &arguments[2..] {
        ["send", route] => send(&sidecar, route),
        ["receive"] => print_and_release(&sidecar, &next(&sidecar)?),
        ["call", route] => call(&sidecar, route),
        ["serve"] => serve(&sidecar),
        other => Err(format!("no verb {:?}", other).into()),
    }
}
