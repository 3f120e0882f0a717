// Copies and fills by the driver that leave the allocation they begin in, and memory that is freed.
//@ program fill_past_end
//@   alloc x 1000
//@   fill x 0 1001
//@   finds out of bounds
//@ program fill_words_past_end
//@   alloc x 4096
//@   fill_words x 0 1025
//@   finds out of bounds
//@ program fill_from_within
//@   alloc x 512
//@   fill x 500 13
//@   finds out of bounds
//@ program rows_past_end
//@   alloc x 4096
//@   fill_rows x 512 256 9
//@   finds out of bounds
//@ program last_row_too_wide
//@   alloc x 3900
//@   fill_rows x 512 320 8
//@   finds out of bounds
//@ program upload_past_end
//@   alloc x 600
//@   upload x 0 604
//@   finds out of bounds
//@ program upload_before_start
//@   alloc x 600
//@   upload x -8 64
//@   finds out of bounds
//@ program download_past_end
//@   alloc x 2048
//@   fill x 0 2048
//@   download x 2000 64
//@   finds out of bounds
//@ program move_past_end_of_source
//@   alloc x 1024
//@   alloc y 2048
//@   fill x 0 1024
//@   move y 0 x 0 1028
//@   finds out of bounds
//@ program move_past_end_of_target
//@   alloc x 1024
//@   alloc y 2048
//@   fill y 0 2048
//@   move x 4 y 0 1024
//@   finds out of bounds
//@ program rows_of_target_too_many
//@   pitched x 100 8
//@   pitched y 100 9
//@   fill_rows y 512 100 9
//@   copy_rows x 512 y 512 100 9
//@   finds out of bounds
//@ program rows_of_source_too_many
//@   alloc x 4096
//@   alloc y 8192
//@   fill x 0 4096
//@   copy_rows y 512 x 640 512 7
//@   finds out of bounds
//@ program managed_past_end
//@   managed x 400
//@   shape 1 128
//@   launch default produce x 101
//@   sync
//@   finds out of bounds
//@ program pinned_past_end
//@   pinned h 400
//@   shape 1 128
//@   launch default produce h 101
//@   sync
//@   finds out of bounds
//@ program pool_past_end
//@   stream a
//@   alloc_async a x 400
//@   launch a produce x 101
//@   free_async a x
//@   sync
//@   finds out of bounds
//@ program freed_then_filled
//@   alloc x 1024
//@   free x
//@   fill x 0 1024
//@   finds use after free
//@ program freed_then_read
//@   alloc x 1024
//@   fill x 0 1024
//@   free x
//@   download x 0 1024
//@   finds use after free
//@ program freed_then_launched
//@   alloc x 1024
//@   alloc y 1024
//@   launch default produce x 256
//@   free x
//@   launch default consume x y 256
//@   sync
//@   finds use after free
//@ program freed_in_its_stream_then_launched
//@   stream a
//@   alloc_async a x 1024
//@   launch a produce x 256
//@   free_async a x
//@   launch a produce x 256
//@   sync
//@   finds use after free
//@ program freed_then_its_neighbour_made
//@   alloc x 65536
//@   alloc y 1024
//@   free x
//@   alloc z 65536
//@   launch default produce x 256
//@   sync
//@   finds use after free

extern "C" __global__ void produce(float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = (float)i;
}

extern "C" __global__ void consume(const float* x, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 2.0f;
}
