# Remote GPUs: client/ (the forwarding libcuda.so.1) and worker/ (one process for each session), which share wire/.
REMOTE_DIR := $(ROOT)/native/remote
REMOTE_BUILD := $(BUILD)/remote
REMOTE_OUT := $(OUT)/remote
REMOTE_STAMP := $(REMOTE_BUILD)/remote_stamp
REMOTE_GENERATED_client := client
REMOTE_GENERATED_worker := worker
REMOTE_GENERATED_nvml := nvml_client
REMOTE_OBJECTS = $(patsubst $(REMOTE_DIR)/%.c,$(REMOTE_BUILD)/%.o,$(wildcard $(REMOTE_DIR)/$(1)/*.c $(REMOTE_DIR)/$(1)/*/*.c)) \
	$(patsubst $(REMOTE_DIR)/%.c,$(REMOTE_BUILD)/%.o,$(wildcard $(REMOTE_DIR)/wire/*.c)) \
	$(REMOTE_BUILD)/remote_$(REMOTE_GENERATED_$(1)).o $(BUILD)/api/cuda_resolve.o
REMOTE_HEADERS := $(wildcard $(REMOTE_DIR)/*/*.h $(REMOTE_DIR)/*/*/*.h)

$(REMOTE_STAMP): $(REMOTE_DIR)/calls.txt $(REMOTE_DIR)/spec.py $(REMOTE_DIR)/generate.py $(REMOTE_DIR)/nvml.txt \
		$(REMOTE_DIR)/nvml_generate.py $(REMOTE_DIR)/span_generate.py $(API_STAMP)
	@mkdir -p $(@D)
	$(PYTHON) $(REMOTE_DIR)/nvml_generate.py $(REMOTE_BUILD)
	$(PYTHON) $(REMOTE_DIR)/generate.py $(REMOTE_BUILD)
	$(PYTHON) $(REMOTE_DIR)/span_generate.py $(REMOTE_BUILD)

$(REMOTE_BUILD)/%.o: $(REMOTE_DIR)/%.c $(REMOTE_HEADERS) $(REMOTE_DIR)/part.mk $(REMOTE_STAMP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I$(REMOTE_BUILD) -c $< -o $@

# OpenSSL is in one library, which the others load when TLS is requested. Its only exported symbol is a table of functions,
# so that a program with another OpenSSL is not affected, nor this library by that one.
REMOTE_TLS := $(REMOTE_OUT)/libcalabash-tls.so
REMOTE_TLS_MAP := $(REMOTE_DIR)/tls/tls.map
ifneq ($(OPENSSL_LIBS),)
$(REMOTE_BUILD)/tls/tls.o: CFLAGS += $(OPENSSL_CFLAGS)
$(REMOTE_BUILD)/tls/tls.o: $(OPENSSL_LIBS)

$(REMOTE_TLS): $(REMOTE_BUILD)/tls/tls.o $(REMOTE_TLS_MAP) $(OPENSSL_LIBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,--version-script=$(REMOTE_TLS_MAP) \
		-Wl,--exclude-libs,ALL -Wl,--gc-sections -o $@.new $(REMOTE_BUILD)/tls/tls.o $(OPENSSL_LIBS)
	@mv -f $@.new $@

TARGETS += $(REMOTE_TLS)
else
$(shell rm -f $(REMOTE_TLS)) # of an earlier build
endif

$(REMOTE_BUILD)/remote_%.o: $(REMOTE_STAMP) $(REMOTE_HEADERS)
	$(CC) $(CFLAGS) -I$(REMOTE_BUILD) -c $(REMOTE_BUILD)/remote_$*.c -o $@

$(REMOTE_OUT)/libcuda.so.1: $(call REMOTE_OBJECTS,client) $(IMAGE_OBJECTS) $(API_ERRORS) $(API_SIM_CUDA_MAP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,--version-script=$(API_SIM_CUDA_MAP) \
		-Wl,--exclude-libs,ALL -o $@.new $(filter %.o,$^) -ldl
	@mv -f $@.new $@

# NVML, by the same session and calls; the driver's symbols are not exported.
$(REMOTE_OUT)/libnvidia-ml.so.1: $(call REMOTE_OBJECTS,nvml) $(call REMOTE_OBJECTS,client) $(IMAGE_OBJECTS) $(API_ERRORS) \
		$(API_SIM_NVML_MAP)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,--version-script=$(API_SIM_NVML_MAP) \
		-Wl,--exclude-libs,ALL -o $@.new $(sort $(filter %.o,$^)) -ldl
	@mv -f $@.new $@

REMOTE_WORKER_EXPORTS := fopen fopen64 socket setsockopt bind listen unlink # for the driver, by worker/driver_calls.c
$(REMOTE_OUT)/calabash-worker: $(call REMOTE_OBJECTS,worker) $(REMOTE_BUILD)/remote_nvml_worker.o $(BUILD)/image/bytes.o
	@mkdir -p $(@D)
	$(CC) $(EXTRA_CFLAGS) -pthread -Wl,-z,now -Wl,-z,relro $(REMOTE_WORKER_EXPORTS:%=-Wl,--export-dynamic-symbol=%) \
		-o $@.new $(filter %.o,$^) -ldl
	@mv -f $@.new $@

# It is started without the variables that it sets for the program, so that nothing is preloaded into it.
$(REMOTE_OUT)/calabash-enclose: $(REMOTE_DIR)/enclose/main.c $(REMOTE_DIR)/part.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wl,-z,now -Wl,-z,relro -o $@.new $<
	@mv -f $@.new $@

# Some programs load the driver by its development name, without a version.
$(REMOTE_OUT)/lib%.so: $(REMOTE_OUT)/lib%.so.1
	ln -sf $(<F) $@

# A program of several servers uses a library that routes its calls, and a copy of the client's library for each server.
SPAN_OUT := $(REMOTE_OUT)/span
SPAN_OBJECTS = $(patsubst $(REMOTE_DIR)/%.c,$(REMOTE_BUILD)/%.o,$(wildcard $(REMOTE_DIR)/$(1)/*.c))
SPAN_LINK = $(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,nodelete -Wl,-Bsymbolic -Wl,--exclude-libs,ALL -o $@.new

$(REMOTE_BUILD)/session_%.map: $(API_BUILD)/sim_%.map
	sed '0,/^global:/s//global:\n    cb_session_port;/' $< >$@

$(SPAN_OUT)/libcuda-session.so: $(call REMOTE_OBJECTS,client) $(IMAGE_OBJECTS) $(API_ERRORS) $(REMOTE_BUILD)/session_cuda.map
	@mkdir -p $(@D)
	$(SPAN_LINK) -Wl,--version-script=$(filter %.map,$^) $(filter %.o,$^) -ldl
	@mv -f $@.new $@

$(SPAN_OUT)/libnvidia-ml-session.so: $(call REMOTE_OBJECTS,nvml) $(call REMOTE_OBJECTS,client) $(IMAGE_OBJECTS) $(API_ERRORS) \
		$(REMOTE_BUILD)/session_nvml.map
	@mkdir -p $(@D)
	$(SPAN_LINK) -Wl,--version-script=$(filter %.map,$^) $(sort $(filter %.o,$^)) -ldl
	@mv -f $@.new $@

$(SPAN_OUT)/libcuda.so.1: $(call SPAN_OBJECTS,span) $(REMOTE_BUILD)/remote_span.o $(REMOTE_BUILD)/wire/span.o $(API_ERRORS) \
		$(API_BUILD)/cuda_resolve.o $(API_SIM_CUDA_MAP)
	@mkdir -p $(@D)
	$(SPAN_LINK) -Wl,--version-script=$(API_SIM_CUDA_MAP) $(filter %.o,$^) -ldl
	@mv -f $@.new $@

$(SPAN_OUT)/libnvidia-ml.so.1: $(call SPAN_OBJECTS,span_nvml) $(REMOTE_BUILD)/remote_span_nvml.o $(REMOTE_BUILD)/span/session.o \
		$(REMOTE_BUILD)/nvml/errors.o $(API_SIM_NVML_MAP)
	@mkdir -p $(@D)
	$(SPAN_LINK) -Wl,--version-script=$(API_SIM_NVML_MAP) $(filter %.o,$^) -ldl
	@mv -f $@.new $@

$(SPAN_OUT)/lib%.so: $(SPAN_OUT)/lib%.so.1
	ln -sf $(<F) $@

TARGETS += $(SPAN_OUT)/libcuda.so $(SPAN_OUT)/libnvidia-ml.so $(SPAN_OUT)/libcuda-session.so $(SPAN_OUT)/libnvidia-ml-session.so
TARGETS += $(REMOTE_OUT)/libcuda.so $(REMOTE_OUT)/libnvidia-ml.so $(REMOTE_OUT)/calabash-worker $(REMOTE_OUT)/calabash-enclose
