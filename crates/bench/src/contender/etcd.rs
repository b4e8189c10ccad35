//! etcd, one member on the loopback: a key per target, a transaction per call.
//!
//! The token of a lease is the revision of its grant, which every key must still have when it is
//! released. The few messages of its protocol that are needed stand in `etcd/rpc.rs`.

mod rpc;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::lease::{Record, Tokens, lost, now, token_of};
use super::server::{Around, Server};
use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};
use rpc::{TxnRequest, TxnResponse};

/// A connection and what drives it.
pub(super) struct Etcd {
    runtime: Runtime,
    client: Grpc<Channel>,
    tokens: Tokens,
}

/// Where the port of the clients is written down.
fn port_file(place: &Path) -> PathBuf {
    place.join("port")
}

/// The port that clients reach it at.
pub(super) fn port(place: &Path) -> Result<u16> {
    let text = std::fs::read_to_string(port_file(place)).map_err(during("read the port"))?;
    Ok(text.parse()?)
}

/// Starts it.
pub(super) fn set_up(place: &Path, around: Around<'_>) -> Result<Keeper> {
    // Both at once, so that they differ.
    let (clients, peers) = (free_port()?, free_port()?);
    let (port, peer) = (clients.local_addr()?.port(), peers.local_addr()?.port());
    drop((clients, peers));
    std::fs::write(port_file(place), port.to_string()).map_err(during("keep the port"))?;
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let data = place.join("data");
    let (data, cluster) = (data.to_string_lossy(), format!("bench={peer}"));
    let command = [
        "etcd",
        "--name",
        "bench",
        "--data-dir",
        &*data,
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &cluster,
    ];
    let log = place.with_extension("log");
    let server = Server::start(&command, &log, Signal::TERM, None, around, || {
        Etcd::open(place).is_ok_and(|mut etcd| etcd.transact(TxnRequest::default()).is_ok())
    })?;
    Ok(Box::new(server))
}

fn free_port() -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(during("find a free port"))
}

/// Syncs of its log so far, by its own counter.
pub(crate) fn syncs(place: &Path) -> Result<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port(place)?))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let name = "etcd_disk_wal_fsync_duration_seconds_count ";
    let count = text.lines().find_map(|line| line.strip_prefix(name));
    let count = count.ok_or("etcd does not tell how often it synced")?;
    count.trim().parse().map_err(during("read etcd's counter"))
}

impl Etcd {
    pub(super) fn open(place: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", port(place)?))?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(2));
        let channel = runtime.block_on(endpoint.connect()).map_err(during("connect"))?;
        let limit = 64 << 20;
        let client = Grpc::new(channel).max_decoding_message_size(limit);
        Ok(Self { runtime, client, tokens: Tokens::new() })
    }

    fn transact(&mut self, request: TxnRequest) -> Result<TxnResponse> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await?;
            let path = PathAndQuery::from_static("/etcdserverpb.KV/Txn");
            let codec = ProstCodec::<TxnRequest, TxnResponse>::default();
            Ok(client.unary(tonic::Request::new(request), path, codec).await?.into_inner())
        })
    }
}

fn key(target: u64) -> Vec<u8> {
    format!("lease/{target:020}").into_bytes()
}

impl Session for Etcd {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let (token, now) = (self.tokens.next(), now());
        let mut request = TxnRequest::default();
        for &target in targets {
            request.compare.push(rpc::Compare::absent(key(target)));
            let record = Record::granted(target, &token, now)?;
            request.success.push(rpc::RequestOp::put(key(target), record));
        }
        let answer = self.transact(request)?;
        if !answer.succeeded {
            return Ok(Claimed::Busy);
        }
        let header = answer.header.ok_or("an answer without a revision")?;
        let token = header.revision.to_string();
        Ok(Claimed::Held(Held::Token { targets: targets.to_vec(), token }))
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let revision = token.parse()?;
        let mut request = TxnRequest::default();
        for &target in targets {
            request.compare.push(rpc::Compare::unchanged(key(target), revision));
            request.success.push(rpc::RequestOp::delete(key(target)));
        }
        let done = self.transact(request)?.succeeded;
        if done { Ok(true) } else { Err(lost(targets.first().copied().unwrap_or_default())) }
    }

    fn heartbeat(&mut self, _held: &[Held]) -> Result<()> {
        Err("a transaction of etcd holds 128 operations".into())
    }
}
