//! The messages of etcd's key-value service that a claim and a release need, by its `rpc.proto`.
//!
//! Written by hand, so that building needs no protocol compiler; fields that are not here are skipped.

use prost::{Enumeration, Message, Oneof};

/// If all of `compare` hold, does all of `success`, in one revision.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
}

/// What became of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
}

/// The revision that a request made.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// A condition on one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Compare {
    /// Always 0: equal.
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "TargetUnion", tags = "4, 6")]
    target_union: Option<TargetUnion>,
}

/// What of a key is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
enum CompareTarget {
    Version = 0,
    Mod = 2,
}

/// With what.
#[derive(Clone, PartialEq, Eq, Oneof)]
enum TargetUnion {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    /// The key does not exist.
    pub(super) fn absent(key: Vec<u8>) -> Self {
        let union = TargetUnion::Version(0);
        Self { result: 0, target: CompareTarget::Version.into(), key, target_union: Some(union) }
    }

    /// The key was last written in this revision.
    pub(super) fn unchanged(key: Vec<u8>, revision: i64) -> Self {
        let union = TargetUnion::ModRevision(revision);
        Self { result: 0, target: CompareTarget::Mod.into(), key, target_union: Some(union) }
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "2, 3")]
    request: Option<Request>,
}

/// Its kind.
#[derive(Clone, PartialEq, Eq, Oneof)]
enum Request {
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Removes a key.
#[derive(Clone, PartialEq, Eq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

impl RequestOp {
    /// Writes a key.
    pub(super) fn put(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self { request: Some(Request::Put(PutRequest { key, value })) }
    }

    /// Removes a key.
    pub(super) fn delete(key: Vec<u8>) -> Self {
        Self { request: Some(Request::DeleteRange(DeleteRangeRequest { key })) }
    }
}
