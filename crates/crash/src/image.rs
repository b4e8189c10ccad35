//! The content of a device by pages, cheap to copy.

use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use crate::blockdev::Op;

/// Bytes of a page, and of a sector of the devices.
pub(crate) const PAGE: usize = 4096;

/// See the module. A page of zeros is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pages: Vec<Option<Arc<[u8]>>>,
    digest: u64,
}

impl Image {
    /// Of these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut image = Self { pages: vec![None; bytes.len() / PAGE], digest: 0 };
        for (number, page) in bytes.chunks_exact(PAGE).enumerate() {
            image.set(number, page);
        }
        image
    }

    /// Tells images apart.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Does what a write says.
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { at, bytes } => self.put(*at, bytes.len(), |page, from| {
                let start = from - at;
                page.copy_from_slice(&bytes[start..start + page.len()]);
            }),
            Op::Zero { at, len } => self.put(*at, *len, |page, _| page.fill(0)),
            Op::Flush | Op::Mark(_) => {}
        }
    }

    fn put(&mut self, at: usize, len: usize, mut change: impl FnMut(&mut [u8], usize)) {
        let mut from = at;
        while from < at + len {
            let number = from / PAGE;
            let to = ((number + 1) * PAGE).min(at + len);
            let mut page =
                self.pages[number].as_ref().map_or_else(|| vec![0; PAGE], |page| page.to_vec());
            change(&mut page[from % PAGE..from % PAGE + (to - from)], from);
            self.set(number, &page);
            from = to;
        }
    }

    fn set(&mut self, number: usize, page: &[u8]) {
        self.digest ^= digest(number, self.pages[number].as_deref());
        // Whole words at a time.
        let zero = page.as_chunks::<16>().0.iter().all(|word| u128::from_ne_bytes(*word) == 0);
        self.pages[number] = (!zero).then(|| page.into());
        self.digest ^= digest(number, self.pages[number].as_deref());
    }

    /// Every run of pages that are not zeros, of at most `most` pages: its first page and its pages.
    pub(crate) fn runs(&self, most: usize, mut visit: impl FnMut(usize, &[Option<Arc<[u8]>>])) {
        let mut start = 0;
        while start < self.pages.len() {
            let run = self.pages[start..].iter().take(most).take_while(|page| page.is_some());
            let len = run.count();
            if len > 0 {
                visit(start, &self.pages[start..start + len]);
            }
            start += len.max(1);
        }
    }

    /// How many bytes the device has.
    pub(crate) fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        for (number, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                bytes[number * PAGE..(number + 1) * PAGE].copy_from_slice(page);
            }
        }
        bytes
    }
}

fn digest(number: usize, page: Option<&[u8]>) -> u64 {
    let Some(page) = page else { return 0 };
    let mut hasher = std::hash::DefaultHasher::new();
    number.hash(&mut hasher);
    page.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_across_pages_read_back_and_the_digest_follows_the_content() {
        let mut image = Image::new(&[0; 4 * PAGE]);
        let empty = image.digest();
        image.apply(&Op::Write { at: PAGE - 2, bytes: vec![7; PAGE + 4].into() });
        let mut expected = vec![0; 4 * PAGE];
        expected[PAGE - 2..2 * PAGE + 2].fill(7);
        assert_eq!(image.bytes(), expected);
        assert_eq!(image.digest(), Image::new(&expected).digest());
        let mut runs = Vec::new();
        image.runs(2, |start, pages| runs.push((start, pages.len())));
        assert_eq!(runs, [(0, 2), (2, 1)]);
        image.apply(&Op::Zero { at: 0, len: 3 * PAGE });
        assert_eq!(image.digest(), empty);
    }
}
