// Sessions and buffers as C++ objects that close what they have opened, and errors as
// exceptions: a few lines over the C interface.
#include <fercuda/fercuda.h>

#include <cstdlib>
#include <iostream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Error : std::runtime_error {
    explicit Error(fer_status answer)
        : std::runtime_error(std::string(fer_status_name(answer)) + ": " + fer_last_error_message()),
          status(answer) {}
    fer_status status;
};

void must(fer_status status) {
    if (status != FER_OK)
        throw Error(status);
}

// A handle that is closed once, by its last owner.
class Owner {
public:
    Owner(std::uint64_t handle, fer_status (*close)(std::uint64_t)) : handle_(handle), close_(close) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, 0)), close_(other.close_) {}
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    Owner &operator=(Owner &&) = delete;
    ~Owner() {
        if (handle_ != 0 && close_(handle_) != FER_OK)
            std::cerr << fer_last_error_message() << '\n';
    }
    std::uint64_t get() const { return handle_; }

private:
    std::uint64_t handle_;
    fer_status (*close_)(std::uint64_t);
};

Owner open_runtime() {
    fer_runtime runtime = 0;
    must(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    return Owner(runtime, fer_runtime_close);
}

Owner open_session(const Owner &runtime, const std::string &name, std::uint64_t limit_bytes) {
    fer_session session = 0;
    must(fer_session_open(runtime.get(), name.c_str(), limit_bytes, &session));
    return Owner(session, fer_session_close);
}

// Numbers on the device.
class Buffer {
public:
    Buffer(const Owner &session, const std::vector<std::int32_t> &values) : session_(session.get()) {
        const std::uint64_t shape[] = {values.size()};
        fer_layout layout = {};
        must(fer_layout_contiguous(FER_DTYPE_I32, 1, shape, &layout));
        must(fer_alloc_buffer(session_, &layout, FER_REGIME_POOL, &buffer_));
        must(fer_upload_bytes(session_, buffer_, values.data(), bytes(values)));
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() {
        if (fer_free_buffer(session_, buffer_) != FER_OK)
            std::cerr << fer_last_error_message() << '\n';
    }

    // Every `step`th number, the last one first.
    std::vector<std::int32_t> backwards(std::uint64_t len, std::int64_t step) const {
        fer_layout layout = {};
        layout.dtype = FER_DTYPE_I32;
        layout.rank = 1;
        layout.shape[0] = (len + static_cast<std::uint64_t>(step) - 1) / static_cast<std::uint64_t>(step);
        layout.strides[0] = -step;
        const auto last = static_cast<std::int64_t>(layout.shape[0] - 1) * step * 4;
        fer_buffer view = 0;
        must(fer_view_buffer(session_, buffer_, &layout, last, &view));
        std::vector<std::int32_t> values(layout.shape[0]);
        const fer_status status = fer_download_bytes(session_, view, values.data(), bytes(values));
        must(fer_free_buffer(session_, view));
        must(status);
        return values;
    }

private:
    static std::uint64_t bytes(const std::vector<std::int32_t> &values) {
        return values.size() * sizeof values[0];
    }

    fer_session session_;
    fer_buffer buffer_ = 0;
};

} // namespace

int main() try {
    const Owner runtime = open_runtime();
    {
        const Owner session = open_session(runtime, "numbers", 1 << 16);
        std::vector<std::int32_t> values(1000);
        std::iota(values.begin(), values.end(), 0);
        const Buffer numbers(session, values);
        const std::vector<std::int32_t> got = numbers.backwards(values.size(), 3);
        for (std::size_t at = 0; at < got.size(); ++at)
            if (got[at] != static_cast<std::int32_t>(3 * (got.size() - 1 - at)))
                throw std::logic_error("a number is not where it should be");
        try {
            const Buffer too_many(session, std::vector<std::int32_t>(1 << 20));
            return EXIT_FAILURE;
        } catch (const Error &error) {
            if (error.status != FER_ERROR_LIMIT)
                throw;
            std::cout << "refused: " << error.what() << '\n';
        }
    }
    std::uint64_t holders = 0;
    must(fer_holders(runtime.get(), nullptr, 0, &holders));
    std::cout << holders << " hold memory\n";
    return holders == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
}
