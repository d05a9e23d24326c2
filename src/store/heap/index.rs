//! The way down the primary key's index to the entries of one row. It goes as nbtree's own search
//! does (see its README in PostgreSQL's source), but compares bytes where that calls an operator,
//! and needs no scan, which has to be made and taken down: half of what a denied call cost.
//!
//! The layout of the pages is that of version 4 of nbtree, in all versions of PostgreSQL from 12 on.

use std::cmp::Ordering;
use std::mem::offset_of;

use pgrx::pg_sys::*;

use super::raw;
use crate::store::RowId;

/// What stands at the end of each page: `BTPageOpaqueData`.
#[repr(C)]
struct Opaque {
    prev: BlockNumber,
    next: BlockNumber,
    level: u32,
    flags: u16,
    cycle: u16,
}

const LEAF: u16 = 1 << 0;
const DELETED: u16 = 1 << 2;
const HALF_DEAD: u16 = 1 << 4;
const HAS_GARBAGE: u16 = 1 << 6;

/// Of `t_info`: the offset number of `t_tid` is no offset number, but what follows.
const ALTERNATIVE_TID: u16 = 0x2000;
const COUNT: u16 = 0x0fff;
const HAS_HEAP_TID: u16 = 0x1000;
const IS_POSTING_LIST: u16 = 0x2000;

/// How many columns the index has: name, key and shard.
const COLUMNS: u16 = 3;

/// What an index entry leads to.
#[derive(Clone, Copy, PartialEq)]
pub enum Leads {
    /// To the row that was looked for.
    ToIt,
    /// To a version that is not visible.
    Astray,
    /// To one that nobody can see any more.
    ToDead,
}

/// Shows each entry of a row to `follow`, until it leads to it.
///
/// # Safety
/// Inside a guard; the relations are open and locked, and a snapshot is active, which keeps pages
/// from being used anew. `follow` may read the heap, as a check for uniqueness does: the page of
/// the index is locked meanwhile.
pub unsafe fn search(
    heap: Relation,
    index: Relation,
    id: RowId,
    mut follow: impl FnMut(ItemPointerData) -> Leads,
) {
    // SAFETY: every page is pinned and locked from when it is reached to when it is left.
    unsafe {
        let mut page = match raw::bt_getroot(index, heap) {
            0 => return, // there is no entry at all
            root => Page::of(root),
        };
        loop {
            page = page.right_to(index, |page| {
                page.is_ignored() || page.high_key().is_some_and(|key| compare(id, key).is_gt())
            });
            if page.is_leaf() {
                break;
            }
            page = Page::of(raw::_bt_relandgetbuf(index, page.buffer, page.child(id), SHARE));
        }
        // Entries that are marked as dead on the primary may still be visible on a standby.
        let marks = !raw::TransactionStartedDuringRecovery();
        'pages: loop {
            for n in page.lower_bound(page.first(), id)..=page.last() {
                if marks && (*page.item(n)).lp_flags() == LP_DEAD {
                    continue;
                }
                let entry = page.tuple(n);
                if compare(id, entry).is_ne() {
                    break 'pages;
                }
                let mut dead = true;
                for tid in tids(entry) {
                    match follow(*tid) {
                        Leads::ToIt => break 'pages,
                        Leads::Astray => dead = false,
                        Leads::ToDead => {}
                    }
                }
                if dead && marks {
                    page.mark_dead(n);
                }
            }
            // The entries of a row may go on to the next page, if that begins with the same.
            if page.high_key().is_none_or(|key| compare(id, key).is_lt()) {
                break;
            }
            let next = (*page.opaque()).next;
            page = Page::of(raw::_bt_relandgetbuf(index, page.buffer, next, SHARE));
            page = page.right_to(index, |page| page.is_ignored());
        }
        raw::_bt_relbuf(index, page.buffer);
    }
}

const SHARE: i32 = BUFFER_LOCK_SHARE as i32;

/// A page of the index, pinned and locked.
#[derive(Clone, Copy)]
struct Page {
    buffer: Buffer,
    at: *mut u8,
}

/// # Safety
/// Of all of these: the page is pinned and locked; `n` is one of its items.
impl Page {
    unsafe fn of(buffer: Buffer) -> Page {
        // SAFETY: reads where the buffers are.
        Page { buffer, at: unsafe { BufferGetPage(buffer) }.cast() }
    }

    unsafe fn header(self) -> *mut PageHeaderData {
        self.at.cast()
    }

    unsafe fn opaque(self) -> *mut Opaque {
        unsafe { self.at.add(usize::from((*self.header()).pd_special)).cast() }
    }

    unsafe fn is_leaf(self) -> bool {
        unsafe { (*self.opaque()).flags & LEAF != 0 }
    }

    unsafe fn is_rightmost(self) -> bool {
        unsafe { (*self.opaque()).next == 0 }
    }

    /// Whether it is on the way out of the tree.
    unsafe fn is_ignored(self) -> bool {
        unsafe { (*self.opaque()).flags & (DELETED | HALF_DEAD) != 0 }
    }

    /// This page, or the next to its right for which `past` doesn't hold.
    unsafe fn right_to(self, index: Relation, past: impl Fn(Page) -> bool) -> Page {
        let mut page = self;
        unsafe {
            while !page.is_rightmost() && past(page) {
                let next = (*page.opaque()).next;
                page = Page::of(raw::_bt_relandgetbuf(index, page.buffer, next, SHARE));
            }
        }
        page
    }

    unsafe fn item(self, n: u16) -> *mut ItemIdData {
        let items = offset_of!(PageHeaderData, pd_linp);
        unsafe { self.at.add(items).cast::<ItemIdData>().add(usize::from(n) - 1) }
    }

    unsafe fn tuple(self, n: u16) -> *const IndexTupleData {
        unsafe { self.at.add((*self.item(n)).lp_off() as usize).cast() }
    }

    /// What no entry of the page is above; the last page has none.
    unsafe fn high_key(self) -> Option<*const IndexTupleData> {
        unsafe { (!self.is_rightmost()).then(|| self.tuple(1)) }
    }

    /// The number of the first entry, after the high key.
    unsafe fn first(self) -> u16 {
        unsafe { if self.is_rightmost() { 1 } else { 2 } }
    }

    /// The number of the last entry.
    unsafe fn last(self) -> u16 {
        let lower = usize::from(unsafe { (*self.header()).pd_lower });
        let items = lower.saturating_sub(offset_of!(PageHeaderData, pd_linp));
        (items / size_of::<ItemIdData>()) as u16
    }

    /// The number of the first entry from `low` on that is not below the row.
    unsafe fn lower_bound(self, low: u16, id: RowId) -> u16 {
        let (mut low, mut high) = unsafe { (low, self.last() + 1) };
        while low < high {
            let middle = low + (high - low) / 2;
            match compare(id, unsafe { self.tuple(middle) }) {
                Ordering::Greater => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// Of a page that is no leaf: the page below on which the row's first entry would be. The first
    /// entry counts as below everything.
    unsafe fn child(self, id: RowId) -> BlockNumber {
        unsafe {
            let after = self.lower_bound(self.first() + 1, id);
            block(&(*self.tuple(after - 1)).t_tid)
        }
    }

    /// Marks an entry so that no search follows it again. Only a hint: a lock to read is enough.
    unsafe fn mark_dead(self, n: u16) {
        unsafe {
            (*self.item(n)).set_lp_flags(LP_DEAD);
            (*self.opaque()).flags |= HAS_GARBAGE;
            raw::MarkBufferDirtyHint(self.buffer, true);
        }
    }
}

/// The block of a place.
pub fn block(tid: &ItemPointerData) -> BlockNumber {
    u32::from(tid.ip_blkid.bi_hi) << 16 | u32::from(tid.ip_blkid.bi_lo)
}

/// Where an entry of a leaf leads: to one place, or to a list of them.
///
/// # Safety
/// Its page is pinned and locked.
unsafe fn tids<'a>(entry: *const IndexTupleData) -> &'a [ItemPointerData] {
    unsafe {
        let tid = &(*entry).t_tid;
        if (*entry).t_info & ALTERNATIVE_TID == 0 {
            return std::slice::from_ref(tid);
        }
        let list = entry.byte_add(block(tid) as usize).cast();
        std::slice::from_raw_parts(list, usize::from(tid.ip_posid & COUNT))
    }
}

/// How a row compares to an entry. One that leads to pages below, and a high key, may lack the last
/// columns, and what is lacking is below everything.
fn compare(id: RowId, entry: *const IndexTupleData) -> Ordering {
    // SAFETY: an entry of a page that is pinned and locked, of columns that are not NULL.
    unsafe {
        let offset = (*entry).t_tid.ip_posid;
        let pivot = (*entry).t_info & ALTERNATIVE_TID != 0 && offset & IS_POSTING_LIST == 0;
        let columns = if pivot { offset & COUNT } else { COLUMNS };
        let mut at = entry.add(1).cast::<u8>();
        for text in [id.name, id.key].into_iter().take(usize::from(columns)) {
            match compare_text(text, &mut at) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        if columns < COLUMNS {
            return Ordering::Greater;
        }
        let shard = *at.add(at.align_offset(align_of::<i32>())).cast::<i32>();
        let without_tid = pivot && offset & HAS_HEAP_TID == 0;
        id.shard.cmp(&shard).then(if without_tid { Ordering::Greater } else { Ordering::Equal })
    }
}

/// How a text compares to the one `at` this place of an entry, which it moves past.
///
/// # Safety
/// There is a text.
unsafe fn compare_text(text: &[u8], at: &mut *const u8) -> Ordering {
    // SAFETY: as the caller says; what is compressed is copied.
    unsafe {
        if **at == 0 {
            *at = at.add(at.align_offset(align_of::<i32>())); // padding before a long header
        }
        let stored = at.cast::<varlena>();
        if pgrx::varatt_is_1b(stored) {
            let size = pgrx::varsize_1b(stored);
            let bytes = std::slice::from_raw_parts(at.add(1), size - 1);
            *at = at.add(size);
            return text.cmp(bytes);
        }
        *at = at.add(pgrx::varsize_4b(stored));
        let plain = raw::pg_detoast_datum_packed(stored.cast_mut());
        let bytes = std::slice::from_raw_parts(
            pgrx::vardata_any(plain).cast::<u8>(),
            pgrx::varsize_any_exhdr(plain),
        );
        let order = text.cmp(bytes);
        if plain.cast_const() != stored {
            raw::pfree(plain.cast());
        }
        order
    }
}
