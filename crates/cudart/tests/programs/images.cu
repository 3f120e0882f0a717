// Pitched and three-dimensional memory, arrays, textures, surfaces, host memory.
#include "common.h"
#include <cstring>
#include <vector>

__global__ void fetch(cudaTextureObject_t texture, float* out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < width) out[y * width + x] = tex2D<float>(texture, x + 0.5f, y + 0.5f);
}
__global__ void fetch_line(cudaTextureObject_t texture, int* out, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = tex1Dfetch<int>(texture, threadIdx.x);
}
__global__ void fetch_bytes(cudaTextureObject_t texture, float4* out) {
    out[threadIdx.x] = tex2D<float4>(texture, threadIdx.x, 0);
}
__global__ void double_surface(cudaSurfaceObject_t surface, int width) {
    int x = threadIdx.x, y = blockIdx.x;
    if (x >= width) return;
    float value = surf2Dread<float>(surface, x * 4, y);
    surf2Dwrite(value * 2, surface, x * 4, y);
}
__global__ void rows(char* at, size_t pitch, int height) {
    for (int y = 0; y < height; y++) at[y * pitch + threadIdx.x] = y + threadIdx.x;
}

int main() {
    const int width = 37, height = 5;
    std::vector<float> image(width * height), got(width * height);
    for (int i = 0; i < width * height; i++) image[i] = i * 0.5f;

    // An array, a texture of it, a surface of it.
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    OK(cudaMallocArray(&array, &format, width, height, cudaArraySurfaceLoadStore));
    OK(cudaMemcpy2DToArray(array, 0, 0, image.data(), width * 4, width * 4, height,
                           cudaMemcpyHostToDevice));
    cudaChannelFormatDesc read;
    cudaExtent extent;
    unsigned flags;
    OK(cudaArrayGetInfo(&read, &extent, &flags, array));
    EXPECT(read.x == 32 && read.y == 0 && read.f == cudaChannelFormatKindFloat);
    EXPECT(extent.width == width && extent.height == height);
    EXPECT(flags == cudaArraySurfaceLoadStore);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc sampling = {};
    sampling.addressMode[0] = sampling.addressMode[1] = cudaAddressModeClamp;
    sampling.filterMode = cudaFilterModePoint;
    sampling.readMode = cudaReadModeElementType;
    cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    cudaTextureDesc back;
    OK(cudaGetTextureObjectTextureDesc(&back, texture));
    EXPECT(back.addressMode[0] == cudaAddressModeClamp && back.readMode == cudaReadModeElementType);
    float* out;
    OK(cudaMalloc(&out, width * height * 4));
    fetch<<<dim3(2, height), 32>>>(texture, out, width, height);
    // The launch still reads it.
    OK(cudaDestroyTextureObject(texture));
    OK(cudaMemcpy(got.data(), out, width * height * 4, cudaMemcpyDeviceToHost));
    EXPECT(got == image);
    cudaSurfaceObject_t surface;
    OK(cudaCreateSurfaceObject(&surface, &resource));
    double_surface<<<height, 64>>>(surface, width);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaMemcpy2DFromArray(got.data(), width * 4, array, 0, 0, width * 4, height,
                             cudaMemcpyDeviceToHost));
    for (int i = 0; i < width * height; i++) EXPECT(got[i] == i);

    // Linear memory, and bytes as numbers from 0 to 1.
    int line[8] = {1, 2, 3, 4, 5, 6, 7, 8}, fetched[8];
    int *memory, *result;
    OK(cudaMalloc(&memory, sizeof line));
    OK(cudaMalloc(&result, sizeof line));
    OK(cudaMemcpy(memory, line, sizeof line, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = memory;
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.sizeInBytes = sizeof line;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    fetch_line<<<1, 32>>>(texture, result, 8);
    OK(cudaMemcpy(fetched, result, sizeof line, cudaMemcpyDeviceToHost));
    EXPECT(!std::memcmp(line, fetched, sizeof line));
    OK(cudaDestroyTextureObject(texture));
    uchar4 pixels[4] = {{0, 51, 102, 255}, {255, 0, 0, 0}, {0, 255, 0, 0}, {0, 0, 255, 0}};
    size_t pitch;
    uchar4* pitched;
    OK(cudaMallocPitch(&pitched, &pitch, sizeof pixels, 2));
    EXPECT(pitch >= sizeof pixels && pitch % 32 == 0);
    OK(cudaMemcpy2D(pitched, pitch, pixels, sizeof pixels, sizeof pixels, 1,
                    cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = pitched;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
    resource.res.pitch2D.width = 4;
    resource.res.pitch2D.height = 1;
    resource.res.pitch2D.pitchInBytes = pitch;
    sampling.readMode = cudaReadModeNormalizedFloat;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    float4 *parts, host_parts[4];
    OK(cudaMalloc(&parts, sizeof host_parts));
    fetch_bytes<<<1, 4>>>(texture, parts);
    OK(cudaMemcpy(host_parts, parts, sizeof host_parts, cudaMemcpyDeviceToHost));
    EXPECT(host_parts[0].y == 0.2f && host_parts[0].w == 1 && host_parts[3].z == 1);
    OK(cudaDestroyTextureObject(texture));
    resource.resType = (cudaResourceType)9;
    CODE(cudaErrorInvalidValue, cudaCreateTextureObject(&texture, &resource, &sampling, nullptr));
    cudaGetLastError();

    // Boxes.
    cudaPitchedPtr box;
    OK(cudaMalloc3D(&box, make_cudaExtent(10, 4, 3)));
    OK(cudaMemset3D(box, 7, make_cudaExtent(10, 4, 3)));
    OK(cudaMemset2D((char*)box.ptr + box.pitch, box.pitch, 9, 10, 1));
    char bytes[3][4][10];
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(bytes, 10, 10, 4);
    copy.extent = make_cudaExtent(10, 4, 3);
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 10; x++) EXPECT(bytes[z][y][x] == (z == 0 && y == 1 ? 9 : 7));
    cudaArray_t cube;
    cudaChannelFormatDesc shorts = cudaCreateChannelDesc<short2>();
    OK(cudaMalloc3DArray(&cube, &shorts, make_cudaExtent(4, 3, 2), 0));
    short2 values[2][3][4], again[2][3][4] = {};
    for (int i = 0; i < 24; i++) ((short2*)values)[i] = make_short2(i, -i);
    copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values, 16, 4, 3);
    copy.dstArray = cube;
    copy.extent = make_cudaExtent(4, 3, 2);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    copy = {};
    copy.srcArray = cube;
    copy.srcPos = make_cudaPos(1, 1, 1);
    copy.dstPtr = make_cudaPitchedPtr(again, 16, 4, 3);
    copy.dstPos = make_cudaPos(4, 1, 1);
    copy.extent = make_cudaExtent(3, 2, 1);
    copy.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3D(&copy));
    EXPECT(again[1][1][1].x == 17 && again[1][2][3].y == -23 && again[1][1][0].x == 0);
    // A line of bytes that goes over rows of an array.
    float ramp[60], ramp_back[60];
    for (int i = 0; i < 60; i++) ramp[i] = i;
    OK(cudaMemcpyToArray(array, 8, 0, ramp, sizeof ramp, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromArray(ramp_back, array, 8, 0, sizeof ramp, cudaMemcpyDeviceToHost));
    EXPECT(!std::memcmp(ramp, ramp_back, sizeof ramp));
    OK(cudaMemcpy2DFromArray(got.data(), 4, array, 0, 1, 4, 1, cudaMemcpyDeviceToHost));
    EXPECT(got[0] == 35);

    // Host memory.
    int *mapped, *device;
    OK(cudaHostAlloc(&mapped, 64, cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer(&device, mapped, 0));
    rows<<<1, 4>>>((char*)device, 8, 2);
    OK(cudaDeviceSynchronize());
    EXPECT(((char*)mapped)[8 + 3] == 4);
    unsigned host_flags;
    OK(cudaHostGetFlags(&host_flags, mapped));
    EXPECT(host_flags & cudaHostAllocMapped);
    OK(cudaFreeHost(mapped));
    std::vector<char> own(8192);
    OK(cudaHostRegister(own.data(), own.size(), cudaHostRegisterDefault));
    CODE(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(own.data(), own.size(), 0));
    OK(cudaHostUnregister(own.data()));
    CODE(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(own.data()));
    cudaGetLastError();

    // Managed memory.
    int* managed;
    OK(cudaMallocManaged(&managed, 4096));
    for (int i = 0; i < 1024; i++) managed[i] = i;
    cudaMemLocation here = {cudaMemLocationTypeDevice, 0};
    OK(cudaMemAdvise(managed, 4096, cudaMemAdviseSetReadMostly, here));
    OK(cudaMemPrefetchAsync(managed, 4096, here, 0, 0));
    OK(cudaDeviceSynchronize());
    int mostly = 0;
    OK(cudaMemRangeGetAttribute(&mostly, 4, cudaMemRangeAttributeReadMostly, managed, 4096));
    EXPECT(mostly == 1 && managed[1023] == 1023);
    OK(cudaFree(managed));
    size_t room, total;
    OK(cudaMemGetInfo(&room, &total));
    EXPECT(room > 0 && room <= total);
    for (void* it : {(void*)out, (void*)memory, (void*)result, (void*)pitched, (void*)parts, box.ptr})
        OK(cudaFree(it));
    OK(cudaFreeArray(array));
    OK(cudaFreeArray(cube));
    std::puts("all right");
}
