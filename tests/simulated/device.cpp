// A simulated accelerator: two devices over host memory, with the kernels of the CPU.
//
// It keeps what makes an accelerator unlike the CPU: tensors of different devices do not mix, each
// device has its own stream of random numbers and its own counts of memory, backward runs in a
// thread of its own, and reading a value waits for the device, which is counted.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/extension.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

using at::Tensor;
using std::optional;

constexpr auto SIMULATED = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2;

thread_local int current = 0;
thread_local int nested = 0;  // inside of a kernel: what it copies to the host is not the caller's

// What is counted

std::map<std::string, int64_t> counts;
PyObject* listener = nullptr;  // told of each kind of wait at the moment it is counted

struct Block {
  size_t size;
  int device;
};
struct Memory {
  int64_t now = 0, peak = 0, allocations = 0;
};
std::mutex lock;
std::unordered_map<void*, Block> blocks;
std::array<Memory, DEVICES> memory;

void arrive();

void note(const char* kind) {
  if (nested) return;
  if (std::string(kind) != "sent") arrive();
  {
    std::lock_guard<std::mutex> guard(lock);
    ++counts[kind];
  }
  if (listener) {
    const pybind11::gil_scoped_acquire held;
    pybind11::reinterpret_borrow<pybind11::object>(listener)(std::string(kind));
  }
}

struct Nested {
  Nested() { ++nested; }
  ~Nested() { --nested; }
};

// Memory

struct Allocator final : c10::Allocator {
  static void release(void* block) {
    if (!block) return;
    {
      std::lock_guard<std::mutex> guard(lock);
      const auto found = blocks.find(block);
      memory[found->second.device].now -= found->second.size;
      blocks.erase(found);
    }
    c10::free_cpu(block);
  }
  c10::DataPtr allocate(size_t size) override {
    void* block = size ? c10::alloc_cpu(size) : nullptr;
    if (block) {
      std::lock_guard<std::mutex> guard(lock);
      blocks[block] = {size, current};
      auto& mine = memory[current];
      mine.now += size;
      mine.peak = std::max(mine.peak, mine.now);
      ++mine.allocations;
    }
    return {block, block, &release, c10::Device(SIMULATED, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(SIMULATED, &allocator);

std::set<const void*> pinned;

struct PinnedAllocator final : c10::Allocator {
  static void release(void* block) {
    {
      std::lock_guard<std::mutex> guard(lock);
      pinned.erase(block);
    }
    c10::free_cpu(block);
  }
  c10::DataPtr allocate(size_t size) override {
    void* block = c10::alloc_cpu(std::max<size_t>(size, 1));
    std::lock_guard<std::mutex> guard(lock);
    pinned.insert(block);
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};
PinnedAllocator pinned_allocator;

// Random numbers: the CPU's generator, which is taken for a simulated device's but in kernels

struct Generator final : at::CPUGeneratorImpl {
  Generator(int index, uint64_t seed) : CPUGeneratorImpl(seed), home(SIMULATED, index) {
    show(home);
  }
  void show(c10::Device device) {
    device_ = device;
    key_set_ = c10::DispatchKeySet(
        device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1);
  }
  at::CPUGeneratorImpl* clone_impl() const override {
    auto* made = new Generator(home.index(), 0);
    made->set_state(*get_state());
    return made;
  }
  c10::Device home;
  std::recursive_mutex used;
};

const at::Generator& default_generator(int index) {
  static std::array<at::Generator, DEVICES> made = {
      at::make_generator<Generator>(0, 0), at::make_generator<Generator>(1, 0)};
  return made[index < 0 ? current : index];
}

struct OnHost {
  explicit OnHost(const at::Generator& generator)
      : own(static_cast<Generator*>(generator.unsafeGetGeneratorImpl())), hold(own->used) {
    own->show(c10::kCPU);
  }
  ~OnHost() { own->show(own->home); }
  Generator* own;
  std::lock_guard<std::recursive_mutex> hold;
};

// Devices

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIMULATED; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {SIMULATED, (c10::DeviceIndex)current}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { arrive(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { arrive(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current : std::exchange(current, index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current : index, c10::default_rng_seed_val);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> guard(lock);
    return pinned.count(data) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

// Tensors

// The same memory, seen from the host.
Tensor on_host(const Tensor& tensor) {
  if (tensor.device().type() != SIMULATED) return tensor;
  auto* base = static_cast<char*>(tensor.storage().mutable_data_ptr().get());
  auto* data = base ? base + tensor.storage_offset() * tensor.itemsize() : nullptr;
  const auto options = tensor.options().device(c10::kCPU).pinned_memory(false);
  auto seen = at::from_blob(data, tensor.sizes(), tensor.strides(), options);
  seen._set_conj(tensor.is_conj());
  seen._set_neg(tensor.is_neg());
  return seen;
}

c10::Device here(optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(SIMULATED, current);
}

Tensor empty(c10::IntArrayRef size, optional<c10::ScalarType> dtype, optional<c10::Layout>,
             optional<c10::Device> device, optional<bool>, optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(here(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     optional<c10::ScalarType> dtype, optional<c10::Layout>,
                     optional<c10::Device> device, optional<bool>) {
  const c10::DeviceGuard guard(here(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, keys, c10::dtype_or_default(dtype));
}

const Tensor& resize_own(const Tensor& self, c10::IntArrayRef size,
                     optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

// Copies that the host does not wait for: as late as they may be, when it next waits for anything.
// What is on its way to the host is not there before; what is on its way to the device must not be
// written until then, and where it was, that is counted.
struct Flying {
  Tensor kept, host;
  bool to_host;
};
std::vector<Flying> flying;

bool is_pinned(const Tensor& tensor) {
  std::lock_guard<std::mutex> guard(lock);
  return tensor.is_cpu() && pinned.count(tensor.storage().data()) > 0;
}

void arrive() {
  std::vector<Flying> arrived;
  {
    std::lock_guard<std::mutex> guard(lock);
    arrived.swap(flying);
  }
  const Nested inside;
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const auto& one : arrived) {
    if (one.to_host) {
      one.host.copy_(one.kept);
      continue;
    }
    const auto now = one.host.contiguous();
    if (std::memcmp(now.const_data_ptr(), one.kept.const_data_ptr(), now.nbytes()) == 0) continue;
    std::lock_guard<std::mutex> guard(lock);
    ++counts["races"];
  }
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const at::NoGradGuard guard;
  const bool waits = !non_blocking || nested || !is_pinned(to.is_cpu() ? to : from);
  if (to.is_cpu() && waits) note("fetched");
  if (from.is_cpu()) note("sent");
  const auto seen = on_host(from);
  if (waits || !to.is_cpu()) on_host(to).copy_(seen);
  if (waits) return to;
  const auto kept = seen.clone(at::MemoryFormat::Contiguous);
  std::lock_guard<std::mutex> held(lock);
  flying.push_back({kept, to.is_cpu() ? to.detach() : from.detach(), to.is_cpu()});
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_own(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  note("scalars");
  return on_host(self).item();
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                    c10::IntArrayRef stride) {
  const c10::DeviceGuard guard(storage.device());
  auto* own = self.unsafeGetTensorImpl();
  own->set_storage_offset(offset);
  own->set_storage_keep_dtype(std::move(storage));
  at::native::resize_impl_cpu_(
      own, size, stride.empty() ? std::nullopt : optional<c10::IntArrayRef>(stride));
  return self;
}
Tensor& set_tensor(Tensor& self, const Tensor& from) {
  return set_storage(self, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}
Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const int64_t size = storage.nbytes() / self.itemsize();
  return set_storage(self, std::move(storage), 0, {size}, {});
}

// Kernels

// Where a real device takes tensors of the host beside its own.
const std::set<std::string> TAKES_HOST = {
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_pack_padded_sequence",
    "aten::_ctc_loss", "aten::record_stream"};
// What tells of a tensor without a look at its values.
const std::set<std::string> TELLS_NOTHING = {"aten::is_set_to", "aten::_has_same_storage_numel"};

std::vector<Tensor> tensors_in(const torch::jit::Stack& stack, size_t count) {
  std::vector<Tensor> found;
  for (const auto& value : torch::jit::last(stack, count)) {
    if (value.isTensor()) {
      found.push_back(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& each : value.toList())
        if (each.isTensor()) found.push_back(each.toTensor());
    }
  }
  return found;
}

c10::Device device_of(const std::vector<Tensor>& tensors, const std::string& name) {
  c10::Device own(SIMULATED, current);
  bool met = false;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    TORCH_CHECK(!met || tensor.device() == own, "Expected all tensors to be on the same device, ",
                "but found at least two devices, ", own, " and ", tensor.device(), "! (", name, ")");
    own = tensor.device();
    met = true;
  }
  for (const auto& tensor : tensors) {
    const bool scalar = !tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0;
    TORCH_CHECK(scalar || !met || TAKES_HOST.count(name),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                own, " and cpu! (", name, ")");
  }
  return own;
}

// Whether the host waits for what is computed: a shape or a plain value that depends on it.
bool waits(const c10::OperatorHandle& op, const std::vector<Tensor>& tensors) {
  const auto& schema = op.schema();
  if (op.hasTag(at::Tag::dynamic_output_shape)) {
    if (schema.name() != "aten::index") return true;
    for (const auto& tensor : tensors)  // an index by positions has a known shape
      if (tensor.defined() && tensor.scalar_type() == c10::kBool) return &tensor != &tensors[0];
    return false;
  }
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    const bool plain = kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType;
    if (plain && !TELLS_NOTHING.count(schema.name())) return true;
  }
  return false;
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const auto tensors = tensors_in(*stack, count);
  const auto own = device_of(tensors, schema.name());
  const c10::DeviceGuard guard(own);
  if (waits(op, tensors)) note("shapes");
  const Nested inside;
  optional<OnHost> held;
  for (size_t i = 0; i < count; ++i) {
    if (schema.arguments()[i].type()->str().find("Generator") == std::string::npos) continue;
    auto& value = (*stack)[stack->size() - count + i];
    if (value.isNone()) value = default_generator(own.index());
    if (value.toGenerator().device().type() == SIMULATED) held.emplace(value.toGenerator());
  }
  at::native::cpu_fallback(op, stack);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  if (!train.value_or(true) || p == 0)
    return {input.clone(), at::ones_like(input, input.options().dtype(c10::kBool))};
  const auto mask = at::empty_like(input, input.options().dtype(c10::kBool)).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0.0 : 1 / (1 - p)), mask};
}

// What the fallback would copy, and not copy back: the schema does not say that they are written.
std::tuple<Tensor, Tensor, Tensor> batch_norm(
    const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias,
    const optional<Tensor>& mean, const optional<Tensor>& variance, bool training, double momentum,
    double eps) {
  std::vector<Tensor> all = {input};
  std::array<optional<Tensor>, 4> others;
  size_t place = 0;
  for (const auto& other : {weight, bias, mean, variance}) {
    if (other && other->defined()) {
      all.push_back(*other);
      others[place] = on_host(*other);
    }
    ++place;
  }
  const auto own = device_of(all, "aten::native_batch_norm");
  const Nested inside;
  const auto [made, center, spread] = at::native_batch_norm(
      on_host(input), others[0], others[1], others[2], others[3], training, momentum, eps);
  return {made.to(own), center.to(own), spread.to(own)};
}

// torch takes these for every device that is not the CPU; of plain kernels, autograd knows the way.

using Cell = std::tuple<Tensor, Tensor, Tensor>;

Tensor plus(const Tensor& gates, const optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

Cell lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& before,
               const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto gates = plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const auto cell = parts[1].sigmoid() * before + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * cell.tanh(), cell, gates.detach()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& before, const optional<Tensor>& input_bias,
                                    const optional<Tensor>& hidden_bias) {
  const auto first = plus(input_gates, input_bias).chunk(3, 1);
  const auto second = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (first[0] + second[0]).sigmoid();
  const auto update = (first[1] + second[1]).sigmoid();
  const auto fresh = (first[2] + reset * second[2]).tanh();
  return {fresh + update * (before - fresh), update.detach()};
}

Tensor convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const at::NoGradGuard guard;
  std::vector<Tensor> all = {input, weight};
  optional<Tensor> own_bias;
  if (bias && bias->defined()) {
    all.push_back(*bias);
    own_bias = on_host(*bias);
  }
  const auto own = device_of(all, "aten::convolution");
  const Nested inside;
  return at::convolution_symint(on_host(input), on_host(weight), own_bias, stride, padding,
                                dilation, transposed, output_padding, groups).to(own);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  const at::NoGradGuard guard;
  const auto own = device_of({grad, input, weight}, "aten::convolution_backward");
  const Nested inside;
  std::vector<c10::SymInt> sizes = {transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto [first, second, third] = at::convolution_backward_symint(
      on_host(grad), on_host(input), on_host(weight), c10::SymIntArrayRef(sizes), stride, padding,
      dilation, transposed, output_padding, groups, mask);
  const auto back = [&](const Tensor& made) { return made.defined() ? made.to(own) : made; };
  return {back(first), back(second), back(third)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FP32)
  AT_FORALL_PROMOTE(PROMOTE)
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {  // `copy_from` sees that it copies a conjugate
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", resize_own);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("native_dropout", native_dropout);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.def("count", [] { return DEVICES; });
  m.def("device", [] { return current; });
  m.def("set_device", [](int index) { current = index; });
  m.def("counts", [] {
    std::lock_guard<std::mutex> guard(lock);
    return counts;
  });
  m.def("synchronize", arrive);
  m.def("listen", [](pybind11::object called) {
    Py_XDECREF(listener);
    listener = called.is_none() ? nullptr : called.release().ptr();
  });
  m.def("allocated", [](int index) { return memory[index].now; });
  m.def("peak", [](int index) { return memory[index].peak; });
  m.def("allocations", [](int index) { return memory[index].allocations; });
  m.def("reset_peak", [](int index) { memory[index].peak = memory[index].now; });
  m.def("generator", [](int index) { return default_generator(index); });
}
