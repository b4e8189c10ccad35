//! Redis: a hash per target, a script per call, the log synced always, on a socket.

use std::path::{Path, PathBuf};

use ::redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};
use rustix::process::Signal;

use super::lease::{OWNER, PAYLOAD, TTL, Tokens, WORKER, lost, now, token_of};
use super::server::{Around, Server};
use super::{Claimed, Held, Keeper, Session};
use crate::{Result, during};

const CLAIM: &str = "
local at = tonumber(ARGV[4])
for _, key in ipairs(KEYS) do
    local until_ = redis.call('HGET', key, 'expires_at')
    if until_ and tonumber(until_) > at then return 0 end
end
for _, key in ipairs(KEYS) do
    redis.call('HSET', key, 'owner', ARGV[1], 'worker', ARGV[2], 'token', ARGV[3],
        'acquired_at', ARGV[4], 'updated_at', ARGV[4], 'expires_at', ARGV[5], 'ttl', ARGV[6],
        'attempt', 1, 'payload', ARGV[7])
end
return 1";

const RELEASE: &str = "
for _, key in ipairs(KEYS) do
    if redis.call('HGET', key, 'token') ~= ARGV[1] then return 0 end
end
redis.call('DEL', unpack(KEYS))
return 1";

const HEARTBEAT: &str = "
for i, key in ipairs(KEYS) do
    if redis.call('HGET', key, 'token') ~= ARGV[i + 2] then return 0 end
end
for _, key in ipairs(KEYS) do
    redis.call('HSET', key, 'updated_at', ARGV[1], 'expires_at', ARGV[2])
end
return 1";

/// A connection, and the names that the server gave the scripts.
pub(super) struct Redis {
    connection: Connection,
    claim: String,
    release: String,
    heartbeat: String,
    tokens: Tokens,
}

fn socket(place: &Path) -> PathBuf {
    place.join("redis.sock")
}

/// Starts it.
pub(super) fn set_up(place: &Path, around: Around<'_>) -> Result<Keeper> {
    let (dir, socket) = (place.to_string_lossy(), socket(place));
    let socket = socket.to_string_lossy();
    let command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        &*socket,
        "--dir",
        &*dir,
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
        "--daemonize",
        "no",
    ];
    let log = place.with_extension("log");
    let server =
        Server::start(&command, &log, Signal::TERM, None, around, || connect(place).is_ok())?;
    Ok(Box::new(server))
}

fn connect(place: &Path) -> ::redis::RedisResult<Connection> {
    let info: ConnectionInfo = ConnectionAddr::Unix(socket(place)).into_connection_info()?;
    ::redis::Client::open(info)?.get_connection()
}

impl Redis {
    pub(super) fn open(place: &Path) -> Result<Self> {
        let mut connection = connect(place).map_err(during("connect"))?;
        let mut load = |script: &str| -> ::redis::RedisResult<String> {
            ::redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection)
        };
        let (claim, release, heartbeat) = (load(CLAIM)?, load(RELEASE)?, load(HEARTBEAT)?);
        Ok(Self { connection, claim, release, heartbeat, tokens: Tokens::new() })
    }
}

/// The start of a call of a script on these targets.
fn call(script: &str, targets: impl ExactSizeIterator<Item = u64>) -> ::redis::Cmd {
    let mut command = ::redis::cmd("EVALSHA");
    command.arg(script).arg(targets.len());
    for target in targets {
        command.arg(format!("lease:{target}"));
    }
    command
}

impl Session for Redis {
    fn claim(&mut self, targets: &[u64]) -> Result<Claimed> {
        let token = self.tokens.next();
        let now = now();
        let mut command = call(&self.claim, targets.iter().copied());
        command.arg(OWNER).arg(WORKER).arg(&token).arg(now).arg(now + TTL).arg(TTL).arg(PAYLOAD);
        let granted: bool = command.query(&mut self.connection).map_err(during("claim"))?;
        Ok(if granted {
            Claimed::Held(Held::Token { targets: targets.to_vec(), token })
        } else {
            Claimed::Busy
        })
    }

    fn release(&mut self, held: &Held) -> Result<bool> {
        let (targets, token) = token_of(held)?;
        let mut command = call(&self.release, targets.iter().copied());
        let done: bool =
            command.arg(token).query(&mut self.connection).map_err(during("release"))?;
        if done { Ok(true) } else { Err(lost(targets.first().copied().unwrap_or_default())) }
    }

    fn heartbeat(&mut self, held: &[Held]) -> Result<()> {
        let (mut all, mut tokens) = (Vec::new(), Vec::new());
        for held in held {
            let (targets, token) = token_of(held)?;
            all.extend_from_slice(targets);
            tokens.extend(targets.iter().map(|_| token));
        }
        let now = now();
        let mut command = call(&self.heartbeat, all.iter().copied());
        command.arg(now).arg(now + TTL);
        for token in tokens {
            command.arg(token);
        }
        let done: bool = command.query(&mut self.connection).map_err(during("heartbeat"))?;
        if done { Ok(()) } else { Err(lost(all.first().copied().unwrap_or_default())) }
    }
}
