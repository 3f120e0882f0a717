//! The words of PTX: opcodes, modifiers, types and state spaces, each with its spelling.
//!
//! Invariant: one table a kind, from which the enum, `parse` and `text` all come.

/// Slots of an [`WordTable`]; a power of two, at least twice the number of words of any one table.
const SLOTS: usize = 2048;

/// A hash table from spelling to position, filled at compile time; probing is linear.
struct WordTable {
    /// Position + 1, or 0 if free.
    slots: [u16; SLOTS],
}

impl WordTable {
    /// Positions run on from one list to the next.
    const fn new(lists: &[&[&str]]) -> WordTable {
        let mut slots = [0u16; SLOTS];
        let mut position = 0;
        let mut l = 0;
        while l < lists.len() {
            let mut i = 0;
            while i < lists[l].len() {
                position += 1;
                let mut slot = hash(lists[l][i].as_bytes()) as usize % SLOTS;
                while slots[slot] != 0 {
                    slot = (slot + 1) % SLOTS;
                }
                slots[slot] = position;
                i += 1;
            }
            l += 1;
        }
        assert!((position as usize) < SLOTS / 2, "raise SLOTS");
        WordTable { slots }
    }

    fn find(
        &self,
        text: &str,
        hash: u32,
        spelling: impl Fn(usize) -> &'static str,
    ) -> Option<usize> {
        let mut slot = hash as usize % SLOTS;
        loop {
            let i = (self.slots[slot] as usize).checked_sub(1)?;
            if spelling(i) == text {
                return Some(i);
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

/// The hash of an empty spelling.
pub(crate) const HASH_START: u32 = 0x811c_9dc5;

/// The hash of a spelling one byte longer. The lexer folds it as it scans.
pub(crate) const fn hash_step(hash: u32, byte: u8) -> u32 {
    let h = (hash ^ byte as u32).wrapping_mul(0x0100_0193);
    h ^ (h >> 15)
}

const fn hash(text: &[u8]) -> u32 {
    let mut h = HASH_START;
    let mut i = 0;
    while i < text.len() {
        h = hash_step(h, text[i]);
        i += 1;
    }
    h
}

/// Declares a fieldless enum with a spelling for each variant.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[expect(missing_docs, reason = "each variant is the PTX word beside it")]
        pub enum $name { $($variant,)* }

        impl $name {
            /// Every word, in order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            const TEXTS: &'static [&'static str] = &[$($text,)*];

            /// The PTX spelling, without a leading dot.
            #[must_use]
            pub const fn text(self) -> &'static str {
                Self::TEXTS[self as usize]
            }

            /// The word spelt `text` (no leading dot), if it is one.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                Self::parse_hashed(text, hash(text.as_bytes()))
            }

            pub(crate) fn parse_hashed(text: &str, hash: u32) -> Option<$name> {
                static INDEX: WordTable = WordTable::new(&[$name::TEXTS]);
                Some(Self::ALL[INDEX.find(text, hash, |i| Self::TEXTS[i])?])
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.text())
            }
        }
    };
}

words! {
    /// Base opcodes of the PTX ISA.
    Op {
        Abs "abs",
        Activemask "activemask",
        Add "add",
        Addc "addc",
        Alloca "alloca",
        And "and",
        Applypriority "applypriority",
        Atom "atom",
        Bar "bar",
        Barrier "barrier",
        Bfe "bfe",
        Bfi "bfi",
        Bfind "bfind",
        Bmsk "bmsk",
        Bra "bra",
        Brev "brev",
        Brkpt "brkpt",
        Brx "brx",
        Call "call",
        Clusterlaunchcontrol "clusterlaunchcontrol",
        Clz "clz",
        Cnot "cnot",
        Copysign "copysign",
        Cos "cos",
        Cp "cp",
        Createpolicy "createpolicy",
        Cvt "cvt",
        Cvta "cvta",
        Discard "discard",
        Div "div",
        Dp2a "dp2a",
        Dp4a "dp4a",
        Elect "elect",
        Ex2 "ex2",
        Exit "exit",
        Fence "fence",
        Fma "fma",
        Fns "fns",
        Getctarank "getctarank",
        Griddepcontrol "griddepcontrol",
        Isspacep "isspacep",
        Istypep "istypep",
        Ld "ld",
        Ldmatrix "ldmatrix",
        Ldu "ldu",
        Lg2 "lg2",
        Lop3 "lop3",
        Mad "mad",
        Mad24 "mad24",
        Madc "madc",
        Mapa "mapa",
        Match "match",
        Max "max",
        Mbarrier "mbarrier",
        Membar "membar",
        Min "min",
        Mma "mma",
        Mov "mov",
        Movmatrix "movmatrix",
        Mul "mul",
        Mul24 "mul24",
        Multimem "multimem",
        Nanosleep "nanosleep",
        Neg "neg",
        Not "not",
        Or "or",
        Pmevent "pmevent",
        Popc "popc",
        Prefetch "prefetch",
        Prefetchu "prefetchu",
        Prmt "prmt",
        Rcp "rcp",
        Red "red",
        Redux "redux",
        Rem "rem",
        Ret "ret",
        Rsqrt "rsqrt",
        Sad "sad",
        Selp "selp",
        Set "set",
        Setmaxnreg "setmaxnreg",
        Setp "setp",
        Shf "shf",
        Shfl "shfl",
        Shl "shl",
        Shr "shr",
        Sin "sin",
        Slct "slct",
        Sqrt "sqrt",
        St "st",
        Stackrestore "stackrestore",
        Stacksave "stacksave",
        Stmatrix "stmatrix",
        Sub "sub",
        Subc "subc",
        Suld "suld",
        Suq "suq",
        Sured "sured",
        Sust "sust",
        Szext "szext",
        Tanh "tanh",
        Tcgen05 "tcgen05",
        Tensormap "tensormap",
        Testp "testp",
        Tex "tex",
        Tld4 "tld4",
        Trap "trap",
        Txq "txq",
        Vabsdiff "vabsdiff",
        Vabsdiff2 "vabsdiff2",
        Vabsdiff4 "vabsdiff4",
        Vadd "vadd",
        Vadd2 "vadd2",
        Vadd4 "vadd4",
        Vavrg2 "vavrg2",
        Vavrg4 "vavrg4",
        Vmad "vmad",
        Vmax "vmax",
        Vmax2 "vmax2",
        Vmax4 "vmax4",
        Vmin "vmin",
        Vmin2 "vmin2",
        Vmin4 "vmin4",
        Vote "vote",
        Vset "vset",
        Vset2 "vset2",
        Vset4 "vset4",
        Vshl "vshl",
        Vshr "vshr",
        Vsub "vsub",
        Vsub2 "vsub2",
        Vsub4 "vsub4",
        Wgmma "wgmma",
        Wmma "wmma",
        Xor "xor",
    }
}

words! {
    /// Element types. Sub-byte and packed forms appear as instruction types only.
    ScalarType {
        U8 "u8",
        U16 "u16",
        U32 "u32",
        U64 "u64",
        S8 "s8",
        S16 "s16",
        S32 "s32",
        S64 "s64",
        B8 "b8",
        B16 "b16",
        B32 "b32",
        B64 "b64",
        B128 "b128",
        F16 "f16",
        F16x2 "f16x2",
        Bf16 "bf16",
        Bf16x2 "bf16x2",
        F32 "f32",
        F32x2 "f32x2",
        F64 "f64",
        Tf32 "tf32",
        Pred "pred",
        E4m3 "e4m3",
        E5m2 "e5m2",
        E4m3x2 "e4m3x2",
        E5m2x2 "e5m2x2",
        E2m1 "e2m1",
        E2m3 "e2m3",
        E3m2 "e3m2",
        E2m1x2 "e2m1x2",
        E2m3x2 "e2m3x2",
        E3m2x2 "e3m2x2",
        E2m1x4 "e2m1x4",
        E4m3x4 "e4m3x4",
        E5m2x4 "e5m2x4",
        E2m3x4 "e2m3x4",
        E3m2x4 "e3m2x4",
        Ue8m0 "ue8m0",
        Ue8m0x2 "ue8m0x2",
        Ue4m3 "ue4m3",
        B1 "b1",
        S4 "s4",
        U4 "u4",
        Texref "texref",
        Samplerref "samplerref",
        Surfref "surfref",
        U16x2 "u16x2",
        S16x2 "s16x2",
    }
}

words! {
    /// State spaces of variables.
    Space {
        Reg "reg", Global "global", Const "const", Shared "shared", Local "local", Param "param", Tex "tex",
    }
}

words! {
    /// Modifier words that are not types.
    Word {
        Eq "eq",
        Ne "ne",
        Lt "lt",
        Le "le",
        Gt "gt",
        Ge "ge",
        Lo "lo",
        Hi "hi",
        Ls "ls",
        Hs "hs",
        Equ "equ",
        Neu "neu",
        Ltu "ltu",
        Leu "leu",
        Gtu "gtu",
        Geu "geu",
        Num "num",
        IsNan "nan",
        And "and",
        Or "or",
        Xor "xor",
        Rn "rn",
        Rz "rz",
        Rm "rm",
        Rp "rp",
        Rna "rna",
        Rs "rs",
        Rni "rni",
        Rzi "rzi",
        Rmi "rmi",
        Rpi "rpi",
        Ftz "ftz",
        Sat "sat",
        Relu "relu",
        Satfinite "satfinite",
        Approx "approx",
        Full "full",
        Xorsign "xorsign",
        Abs "abs",
        PropagateNan "NaN",
        Oob "oob",
        Cc "cc",
        Noftz "noftz",
        Wide "wide",
        To "to",
        Uni "uni",
        V2 "v2",
        V4 "v4",
        V8 "v8",
        Global "global",
        Shared "shared",
        SharedCta "shared::cta",
        SharedCluster "shared::cluster",
        Local "local",
        Param "param",
        ParamEntry "param::entry",
        ParamFunc "param::func",
        Const "const",
        Volatile "volatile",
        Relaxed "relaxed",
        Acquire "acquire",
        Release "release",
        AcqRel "acq_rel",
        Sc "sc",
        Weak "weak",
        Mmio "mmio",
        Cta "cta",
        Cluster "cluster",
        Gpu "gpu",
        Sys "sys",
        Gl "gl",
        Ca "ca",
        Cg "cg",
        Cs "cs",
        Lu "lu",
        Cv "cv",
        Wb "wb",
        Wt "wt",
        Nc "nc",
        L1EvictNormal "L1::evict_normal",
        L1EvictUnchanged "L1::evict_unchanged",
        L1EvictFirst "L1::evict_first",
        L1EvictLast "L1::evict_last",
        L1NoAllocate "L1::no_allocate",
        L2EvictNormal "L2::evict_normal",
        L2EvictFirst "L2::evict_first",
        L2EvictLast "L2::evict_last",
        L2EvictUnchanged "L2::evict_unchanged",
        L2CacheHint "L2::cache_hint",
        L264B "L2::64B",
        L2128B "L2::128B",
        L2256B "L2::256B",
        L1 "L1",
        L2 "L2",
        Exch "exch",
        Cas "cas",
        Inc "inc",
        Dec "dec",
        Min "min",
        Max "max",
        Add "add",
        Popc "popc",
        Sync "sync",
        Aligned "aligned",
        Arrive "arrive",
        Red "red",
        ArriveDrop "arrive_drop",
        ExpectTx "expect_tx",
        CompleteTx "complete_tx",
        Init "init",
        Inval "inval",
        TestWait "test_wait",
        TryWait "try_wait",
        PendingCount "pending_count",
        NoComplete "noComplete",
        Parity "parity",
        Noinc "noinc",
        Wait "wait",
        All "all",
        Read "read",
        Warp "warp",
        Up "up",
        Down "down",
        Bfly "bfly",
        Idx "idx",
        Any "any",
        Ballot "ballot",
        Async "async",
        Bulk "bulk",
        Tensor "tensor",
        CommitGroup "commit_group",
        WaitGroup "wait_group",
        WaitAll "wait_all",
        Commit "commit",
        Mbarrier "mbarrier",
        BulkGroup "bulk_group",
        MbarrierCompleteTxBytes "mbarrier::complete_tx::bytes",
        MulticastCluster "multicast::cluster",
        Tile "tile",
        Im2col "im2col",
        Im2colNoOffs "im2col_no_offs",
        TileGather4 "tile::gather4",
        TileScatter4 "tile::scatter4",
        Im2colW "im2col::w",
        Im2colW128 "im2col::w::128",
        CtaGroup1 "cta_group::1",
        CtaGroup2 "cta_group::2",
        N1d "1d",
        N2d "2d",
        N3d "3d",
        N4d "4d",
        N5d "5d",
        A1d "a1d",
        A2d "a2d",
        Acube "acube",
        Cube "cube",
        N2dms "2dms",
        A2dms "a2dms",
        Proxy "proxy",
        Tensormap "tensormap",
        SyncRestrictSharedCta "sync_restrict::shared::cta",
        SyncRestrictSharedCluster "sync_restrict::shared::cluster",
        MbarrierInit "mbarrier_init",
        LaunchDependents "launch_dependents",
        Load "load",
        Store "store",
        Mma "mma",
        Fence "fence",
        MmaAsync "mma_async",
        A "a",
        B "b",
        C "c",
        D "d",
        Row "row",
        Col "col",
        M8n8 "m8n8",
        M8n16 "m8n16",
        M16n8 "m16n8",
        M16n16 "m16n16",
        M8n8k4 "m8n8k4",
        M8n8k16 "m8n8k16",
        M8n8k32 "m8n8k32",
        M8n8k128 "m8n8k128",
        M16n8k4 "m16n8k4",
        M16n8k8 "m16n8k8",
        M16n8k16 "m16n8k16",
        M16n8k32 "m16n8k32",
        M16n8k64 "m16n8k64",
        M16n8k128 "m16n8k128",
        M16n8k256 "m16n8k256",
        M16n16k16 "m16n16k16",
        M32n8k16 "m32n8k16",
        M8n32k16 "m8n32k16",
        M16n16k8 "m16n16k8",
        X1 "x1",
        X2 "x2",
        X4 "x4",
        Trans "trans",
        Sp "sp",
        SpOrderedMetadata "sp::ordered_metadata",
        KindF8f6f4 "kind::f8f6f4",
        KindMxf8f6f4 "kind::mxf8f6f4",
        KindMxf4 "kind::mxf4",
        KindMxf4nvf4 "kind::mxf4nvf4",
        BlockScale "block_scale",
        ScaleVec1X "scale_vec::1X",
        ScaleVec2X "scale_vec::2X",
        ScaleVec4X "scale_vec::4X",
        B6x16P32 "b6x16_p32",
        B4x16P64 "b4x16_p64",
        B8x16 "b8x16",
        Wrap "wrap",
        Clamp "clamp",
        L "l",
        R "r",
        B4e "b4e",
        Rc8 "rc8",
        Ecl "ecl",
        Ecr "ecr",
        Rc16 "rc16",
        Finite "finite",
        Infinite "infinite",
        Number "number",
        Notanumber "notanumber",
        Normal "normal",
        Subnormal "subnormal",
        Po "po",
        Shiftamt "shiftamt",
        Width "width",
        Height "height",
        Depth "depth",
        ChannelDataType "channel_data_type",
        ChannelOrder "channel_order",
        NormalizedCoords "normalized_coords",
        ArraySize "array_size",
        NumMipmapLevels "num_mipmap_levels",
        NumSamples "num_samples",
        ForceUnnormalizedCoords "force_unnormalized_coords",
        FilterMode "filter_mode",
        AddrMode0 "addr_mode_0",
        AddrMode1 "addr_mode_1",
        AddrMode2 "addr_mode_2",
        Trap "trap",
        Zero "zero",
        Base "base",
        Level "level",
        Grad "grad",
        P "p",
        Range "range",
        Cvt "cvt",
        Replace "replace",
        GlobalAddress "global_address",
        Rank "rank",
        BoxDim "box_dim",
        GlobalDim "global_dim",
        GlobalStride "global_stride",
        ElementStride "element_stride",
        Elemtype "elemtype",
        InterleaveLayout "interleave_layout",
        SwizzleMode "swizzle_mode",
        FillMode "fill_mode",
        SwizzleAtomicity "swizzle_atomicity",
        CpFenceproxy "cp_fenceproxy",
        LdReduce "ld_reduce",
        X8 "x8",
        X16 "x16",
        X32 "x32",
        X64 "x64",
        X128 "x128",
        Alloc "alloc",
        Dealloc "dealloc",
        RelinquishAllocPermit "relinquish_alloc_permit",
        Cp "cp",
        Shift "shift",
        N16x64b "16x64b",
        N16x128b "16x128b",
        N16x256b "16x256b",
        N32x32b "32x32b",
        N16x32bx2 "16x32bx2",
        N128x256b "128x256b",
        N4x256b "4x256b",
        N128x128b "128x128b",
        N64x128b "64x128b",
        N32x128b "32x128b",
        Pack16b "pack::16b",
        Unpack16b "unpack::16b",
        WaitLd "wait::ld",
        WaitSt "wait::st",
        Warpx20213 "warpx2::02_13",
        Warpx20123 "warpx2::01_23",
        Warpx4 "warpx4",
        Ws "ws",
        CollectorAFill "collector::a::fill",
        CollectorAUse "collector::a::use",
        CollectorALastuse "collector::a::lastuse",
        CollectorADiscard "collector::a::discard",
        KindTf32 "kind::tf32",
        KindF16 "kind::f16",
        KindI8 "kind::i8",
        Block16 "block16",
        Block32 "block32",
        TryCancel "try_cancel",
        QueryCancel "query_cancel",
        IsCanceled "is_canceled",
        GetFirstCtaid "get_first_ctaid",
        GetFirstCtaidX "get_first_ctaid::x",
        GetFirstCtaidY "get_first_ctaid::y",
        GetFirstCtaidZ "get_first_ctaid::z",
        F4e "f4e",
        Pack "pack",
        Fractional "fractional",
        Reduce "reduce",
        Prefetch "prefetch",
        CpMask "cp_mask",
        AccF32 "acc::f32",
        AccF16 "acc::f16",
        Ld "ld",
        St "st",
        Alias "alias",
        AsyncGeneric "async::generic",
        TensormapGeneric "tensormap::generic",
        FenceBeforeThreadSync "fence::before_thread_sync",
        FenceAfterThreadSync "fence::after_thread_sync",
        MbarrierArriveOne "mbarrier::arrive::one",
        MulticastClusterAll "multicast::cluster::all",
        G "g",
        Mask "mask",
        Shr7 "shr7",
        Shr15 "shr15",
        Ashift "ashift",
        B1024 "b1024",
        MemoryLayout "memory_layout",
        CollectorB0Fill "collector::b0::fill",
        CollectorB0Use "collector::b0::use",
        CollectorB0Lastuse "collector::b0::lastuse",
        CollectorB0Discard "collector::b0::discard",
        CollectorB1Fill "collector::b1::fill",
        CollectorB1Use "collector::b1::use",
        CollectorB1Lastuse "collector::b1::lastuse",
        CollectorB1Discard "collector::b1::discard",
        CollectorB2Fill "collector::b2::fill",
        CollectorB2Use "collector::b2::use",
        CollectorB2Lastuse "collector::b2::lastuse",
        CollectorB2Discard "collector::b2::discard",
        CollectorB3Fill "collector::b3::fill",
        CollectorB3Use "collector::b3::use",
        CollectorB3Lastuse "collector::b3::lastuse",
        CollectorB3Discard "collector::b3::discard",
        M64n8k8 "m64n8k8",
        M64n16k8 "m64n16k8",
        M64n24k8 "m64n24k8",
        M64n32k8 "m64n32k8",
        M64n40k8 "m64n40k8",
        M64n48k8 "m64n48k8",
        M64n56k8 "m64n56k8",
        M64n64k8 "m64n64k8",
        M64n72k8 "m64n72k8",
        M64n80k8 "m64n80k8",
        M64n88k8 "m64n88k8",
        M64n96k8 "m64n96k8",
        M64n104k8 "m64n104k8",
        M64n112k8 "m64n112k8",
        M64n120k8 "m64n120k8",
        M64n128k8 "m64n128k8",
        M64n136k8 "m64n136k8",
        M64n144k8 "m64n144k8",
        M64n152k8 "m64n152k8",
        M64n160k8 "m64n160k8",
        M64n168k8 "m64n168k8",
        M64n176k8 "m64n176k8",
        M64n184k8 "m64n184k8",
        M64n192k8 "m64n192k8",
        M64n200k8 "m64n200k8",
        M64n208k8 "m64n208k8",
        M64n216k8 "m64n216k8",
        M64n224k8 "m64n224k8",
        M64n232k8 "m64n232k8",
        M64n240k8 "m64n240k8",
        M64n248k8 "m64n248k8",
        M64n256k8 "m64n256k8",
        M64n8k16 "m64n8k16",
        M64n16k16 "m64n16k16",
        M64n24k16 "m64n24k16",
        M64n32k16 "m64n32k16",
        M64n40k16 "m64n40k16",
        M64n48k16 "m64n48k16",
        M64n56k16 "m64n56k16",
        M64n64k16 "m64n64k16",
        M64n72k16 "m64n72k16",
        M64n80k16 "m64n80k16",
        M64n88k16 "m64n88k16",
        M64n96k16 "m64n96k16",
        M64n104k16 "m64n104k16",
        M64n112k16 "m64n112k16",
        M64n120k16 "m64n120k16",
        M64n128k16 "m64n128k16",
        M64n136k16 "m64n136k16",
        M64n144k16 "m64n144k16",
        M64n152k16 "m64n152k16",
        M64n160k16 "m64n160k16",
        M64n168k16 "m64n168k16",
        M64n176k16 "m64n176k16",
        M64n184k16 "m64n184k16",
        M64n192k16 "m64n192k16",
        M64n200k16 "m64n200k16",
        M64n208k16 "m64n208k16",
        M64n216k16 "m64n216k16",
        M64n224k16 "m64n224k16",
        M64n232k16 "m64n232k16",
        M64n240k16 "m64n240k16",
        M64n248k16 "m64n248k16",
        M64n256k16 "m64n256k16",
        M64n8k32 "m64n8k32",
        M64n16k32 "m64n16k32",
        M64n24k32 "m64n24k32",
        M64n32k32 "m64n32k32",
        M64n40k32 "m64n40k32",
        M64n48k32 "m64n48k32",
        M64n56k32 "m64n56k32",
        M64n64k32 "m64n64k32",
        M64n72k32 "m64n72k32",
        M64n80k32 "m64n80k32",
        M64n88k32 "m64n88k32",
        M64n96k32 "m64n96k32",
        M64n104k32 "m64n104k32",
        M64n112k32 "m64n112k32",
        M64n120k32 "m64n120k32",
        M64n128k32 "m64n128k32",
        M64n136k32 "m64n136k32",
        M64n144k32 "m64n144k32",
        M64n152k32 "m64n152k32",
        M64n160k32 "m64n160k32",
        M64n168k32 "m64n168k32",
        M64n176k32 "m64n176k32",
        M64n184k32 "m64n184k32",
        M64n192k32 "m64n192k32",
        M64n200k32 "m64n200k32",
        M64n208k32 "m64n208k32",
        M64n216k32 "m64n216k32",
        M64n224k32 "m64n224k32",
        M64n232k32 "m64n232k32",
        M64n240k32 "m64n240k32",
        M64n248k32 "m64n248k32",
        M64n256k32 "m64n256k32",
        M64n8k64 "m64n8k64",
        M64n16k64 "m64n16k64",
        M64n24k64 "m64n24k64",
        M64n32k64 "m64n32k64",
        M64n40k64 "m64n40k64",
        M64n48k64 "m64n48k64",
        M64n56k64 "m64n56k64",
        M64n64k64 "m64n64k64",
        M64n72k64 "m64n72k64",
        M64n80k64 "m64n80k64",
        M64n88k64 "m64n88k64",
        M64n96k64 "m64n96k64",
        M64n104k64 "m64n104k64",
        M64n112k64 "m64n112k64",
        M64n120k64 "m64n120k64",
        M64n128k64 "m64n128k64",
        M64n136k64 "m64n136k64",
        M64n144k64 "m64n144k64",
        M64n152k64 "m64n152k64",
        M64n160k64 "m64n160k64",
        M64n168k64 "m64n168k64",
        M64n176k64 "m64n176k64",
        M64n184k64 "m64n184k64",
        M64n192k64 "m64n192k64",
        M64n200k64 "m64n200k64",
        M64n208k64 "m64n208k64",
        M64n216k64 "m64n216k64",
        M64n224k64 "m64n224k64",
        M64n232k64 "m64n232k64",
        M64n240k64 "m64n240k64",
        M64n248k64 "m64n248k64",
        M64n256k64 "m64n256k64",
        M64n8k256 "m64n8k256",
        M64n16k256 "m64n16k256",
        M64n24k256 "m64n24k256",
        M64n32k256 "m64n32k256",
        M64n48k256 "m64n48k256",
        M64n64k256 "m64n64k256",
        M64n80k256 "m64n80k256",
        M64n96k256 "m64n96k256",
        M64n112k256 "m64n112k256",
        M64n128k256 "m64n128k256",
        M64n144k256 "m64n144k256",
        M64n160k256 "m64n160k256",
        M64n176k256 "m64n176k256",
        M64n192k256 "m64n192k256",
        M64n208k256 "m64n208k256",
        M64n224k256 "m64n224k256",
        M64n240k256 "m64n240k256",
        M64n256k256 "m64n256k256",
    }
}

/// One dotted modifier of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mod {
    /// `.f32`
    Type(ScalarType),
    /// `.rn`
    Word(Word),
}

impl Mod {
    /// The PTX spelling, without its dot.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Mod::Type(t) => t.text(),
            Mod::Word(w) => w.text(),
        }
    }

    /// The modifier spelt `text` (no leading dot), if it is one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Mod> {
        Self::parse_hashed(text, hash(text.as_bytes()))
    }

    pub(crate) fn parse_hashed(text: &str, hash: u32) -> Option<Mod> {
        static INDEX: WordTable = WordTable::new(&[ScalarType::TEXTS, Word::TEXTS]);
        let types = ScalarType::TEXTS.len();
        let i = INDEX.find(text, hash, |i| {
            if i < types {
                ScalarType::TEXTS[i]
            } else {
                Word::TEXTS[i - types]
            }
        })?;
        Some(if i < types {
            Mod::Type(ScalarType::ALL[i])
        } else {
            Mod::Word(Word::ALL[i - types])
        })
    }
}

impl std::fmt::Display for Mod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_by_its_spelling() {
        for &op in Op::ALL {
            assert_eq!(Op::parse(op.text()), Some(op));
        }
        for &ty in ScalarType::ALL {
            assert_eq!(Mod::parse(ty.text()), Some(Mod::Type(ty)));
            assert_eq!(ScalarType::parse(ty.text()), Some(ty));
        }
        for &word in Word::ALL {
            assert_eq!(Mod::parse(word.text()), Some(Mod::Word(word)));
            assert_eq!(Word::parse(word.text()), Some(word));
        }
        for &space in Space::ALL {
            assert_eq!(Space::parse(space.text()), Some(space));
        }
        assert_eq!(Op::parse("adds"), None);
        assert_eq!(Mod::parse(""), None);
    }
}
