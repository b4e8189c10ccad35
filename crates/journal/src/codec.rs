//! Bytes of the journal: numbers little-endian, texts with their length before them.
//!
//! A reader believes nothing: every length is checked against what is there before it is used, and
//! whatever does not read is [`Malformed`], never a panic or a large allocation.

pub mod page;
pub mod record;
pub mod renewal;

/// Writes values one after the other.
#[derive(Debug, Default)]
pub struct Out(pub Vec<u8>);

impl Out {
    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes, every bit kept.
    pub fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// The bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A count that the reader checks against what follows.
    pub fn count(&mut self, count: usize) {
        // Whatever is encoded here has far fewer parts than this.
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// A text with its length.
    pub fn text(&mut self, text: &str) {
        self.count(text.len());
        self.raw(text.as_bytes());
    }

    /// Whether there is something, and if so what.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Reads values one after the other.
#[derive(Clone, Copy, Debug)]
pub struct In<'a> {
    rest: &'a [u8],
    whole: usize,
}

impl<'a> In<'a> {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, whole: bytes.len() }
    }

    /// Reads from `offset` on.
    pub fn at(bytes: &'a [u8], offset: usize) -> Result<Self, Malformed> {
        let rest = bytes.get(offset..).ok_or(Malformed("an offset"))?;
        Ok(Self { rest, whole: bytes.len() })
    }

    /// How far it has read, from the beginning of the bytes.
    pub fn position(&self) -> usize {
        self.whole - self.rest.len()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes.
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed("the length"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.raw(N)?.try_into().map_err(|_| Malformed("the length"))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn f64(&mut self) -> Result<f64, Malformed> {
        Ok(f64::from_bits(self.u64()?))
    }

    /// A record's id.
    pub fn id(&mut self) -> Result<[u8; 32], Malformed> {
        self.array()
    }

    /// A byte, a record's id, and a byte.
    pub fn member(&mut self) -> Result<(u8, [u8; 32], u8), Malformed> {
        let [first, id @ .., last] = self.array::<34>()?;
        Ok((first, id, last))
    }

    /// A count of parts that take at least `each` bytes.
    pub fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| Malformed("a count"))?;
        if count.saturating_mul(each) > self.rest.len() {
            return Err(Malformed("a count"));
        }
        Ok(count)
    }

    /// A text with its length.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let len = self.count(1)?;
        std::str::from_utf8(self.raw(len)?).map_err(|_| Malformed("a text"))
    }

    /// Something, if there is something.
    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Malformed("a mark of presence")),
        }
    }
}

/// Bytes that are not what this program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} does not read")]
pub struct Malformed(pub &'static str);
