// A quicksort written recursively, one short array a thread, and the same with its own stack in local memory.
//@ run quicksort: quicksort grid=1 block=32
//@   inout recursive: i32[1024] bits exact
//@   inout stacked: i32[1024] int(-40, 40) exact

__device__ int divide(int* a, int low, int high) {
    int pivot = a[(low + high) / 2], i = low - 1, j = high + 1;
    while (true) {
        do ++i;
        while (a[i] < pivot);
        do --j;
        while (a[j] > pivot);
        if (i >= j) return j;
        int v = a[i];
        a[i] = a[j];
        a[j] = v;
    }
}

__device__ __noinline__ void sort_range(int* a, int low, int high) {
    if (low >= high) return;
    int middle = divide(a, low, high);
    sort_range(a, low, middle);
    sort_range(a, middle + 1, high);
}

extern "C" __global__ void quicksort(int* recursive, int* stacked) {
    sort_range(recursive + threadIdx.x * 32, 0, 31);
    int* a = stacked + threadIdx.x * 32;
    int stack[64], depth = 0;
    stack[depth++] = 0;
    stack[depth++] = 31;
    while (depth > 0) {
        int high = stack[--depth], low = stack[--depth];
        if (low >= high) continue;
        int middle = divide(a, low, high);
        stack[depth++] = low;
        stack[depth++] = middle;
        stack[depth++] = middle + 1;
        stack[depth++] = high;
    }
}
