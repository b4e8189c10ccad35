//! Counts what a thread has allocated, and the most that it ever had.

#![allow(unsafe_code, reason = "an allocator has no other interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counted;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTED: Counted = Counted;

fn grew(by: usize) {
    // What is freed by another thread than made it only makes these numbers larger or zero.
    let _ = NOW.try_with(|now| {
        now.set(now.get().saturating_add(by));
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _ = NOW.try_with(|now| now.set(now.get().saturating_sub(layout.size())));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// The most bytes that `work` had at once, beyond those before it.
pub(crate) fn most(work: impl FnOnce()) -> usize {
    let before = NOW.get();
    MOST.set(before);
    work();
    MOST.get().saturating_sub(before)
}
