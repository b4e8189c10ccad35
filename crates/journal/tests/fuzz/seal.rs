//! Gives bytes the checksums that they would need: without them no mutation gets past the first one.

use twox_hash::XxHash3_64;

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
}

fn length(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()));
    usize::try_from(word).unwrap()
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// The frame at the beginning of `bytes`, if its length allows one; says how long it is.
pub(crate) fn frame(bytes: &mut [u8], table: u64) -> Option<usize> {
    let whole = 64 + length(bytes, 4);
    let seed = table ^ (whole as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = XxHash3_64::oneshot_with_seed(seed, bytes.get(16..whole)?);
    put(bytes, 8, sum);
    Some(whole.next_multiple_of(512))
}

/// Every frame of a segment's file from byte 1,024 on. With `chain` each goes on from the one before, in
/// this segment, and the first one from `chain`.
pub(crate) fn frames(bytes: &mut [u8], table: u64, segment: u64, chain: Option<(u64, u64)>) {
    let (mut at, mut last) = (1024, chain);
    while at + 64 <= bytes.len() {
        if !bytes[at..].starts_with(b"RFj1") {
            at += 512;
            continue;
        }
        if let Some((sequence, sum)) = last {
            put(&mut bytes[at..], 24, segment);
            put(&mut bytes[at..], 32, sequence.wrapping_add(1));
            put(&mut bytes[at..], 56, sum);
        }
        let Some(len) = frame(&mut bytes[at..], table) else {
            at += 512;
            continue;
        };
        last = last.map(|(sequence, _)| (sequence.wrapping_add(1), number(&bytes[at..], 8)));
        at += len;
    }
}

/// A sector of a segment: its header, or with another seed its mark.
pub(crate) fn sector(bytes: &mut [u8], seed: u64) {
    let sum = XxHash3_64::oneshot_with_seed(seed, bytes.get(..24).unwrap_or_default());
    put(bytes, 24, sum);
}

/// A whole checkpoint: blocks, index, head.
pub(crate) fn checkpoint(bytes: &mut [u8], table: u64) {
    let at = usize::try_from(number(bytes, 64)).unwrap_or(usize::MAX);
    let len = usize::try_from(number(bytes, 72)).unwrap_or(usize::MAX);
    let end = at.saturating_add(len);
    for entry in (at..end.min(bytes.len())).step_by(53) {
        let place = usize::try_from(number(bytes, entry + 33)).unwrap_or(usize::MAX);
        let block = bytes.get(place..place.saturating_add(length(bytes, entry + 41)));
        let sum = block.map(XxHash3_64::oneshot);
        if let Some(sum) = sum {
            put(bytes, entry + 45, sum);
        }
    }
    if let Some(index) = bytes.get(at..end) {
        let sum = XxHash3_64::oneshot_with_seed(table, index);
        put(bytes, 80, sum);
    }
    let covered = length(bytes, 88).saturating_mul(16).saturating_add(92);
    if let Some(head) = bytes.get(..covered) {
        let sum = XxHash3_64::oneshot_with_seed(table, head);
        put(bytes, covered, sum);
    }
}
