# libcalabash.so, the library that is preloaded into a tenant's programs.
SHIM_DIR := $(ROOT)/native/shim
SHIM_BUILD := $(BUILD)/shim
SHIM_SOURCES := $(wildcard $(SHIM_DIR)/*.c)
SHIM_HEADERS := $(wildcard $(SHIM_DIR)/*.h $(ROOT)/native/page/*.h $(ROOT)/native/image/*.h)
SHIM_OBJECTS := $(SHIM_SOURCES:$(SHIM_DIR)/%.c=$(SHIM_BUILD)/%.o) $(BUILD)/api/cuda_resolve.o $(IMAGE_OBJECTS)
SHIM_GENERATED := $(SHIM_BUILD)/hooks.inc $(SHIM_BUILD)/denied.inc $(SHIM_BUILD)/shim.map
SHIM := $(OUT)/lib/libcalabash.so
TARGETS += $(SHIM)

$(SHIM_BUILD)/%.inc: $(SHIM_DIR)/%.txt
	@mkdir -p $(@D)
	@awk '/^[a-z]/ { print "CB_NAME(" $$1 ")" }' $< > $@

$(SHIM_BUILD)/shim.map: $(SHIM_DIR)/hooks.txt $(SHIM_DIR)/denied.txt
	@mkdir -p $(@D)
	@{ echo '{ global: dlsym; dlvsym; dlopen; dlmopen;'; awk '/^[a-z]/ { print "    " $$1 ";" }' $^; \
	   echo 'local: *; };'; } > $@

$(SHIM_BUILD)/%.o: $(SHIM_DIR)/%.c $(SHIM_HEADERS) $(SHIM_GENERATED) $(SHIM_DIR)/part.mk $(BUILD)/api/stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -ftls-model=initial-exec -fno-semantic-interposition -c $< -o $@

# A sanitizer calls these functions before it is initialized: they must be built without it.
$(SHIM_BUILD)/dl.o $(SHIM_BUILD)/dlreal.o $(SHIM_BUILD)/elf.o: CFLAGS += -fno-sanitize=all

$(SHIM): $(SHIM_OBJECTS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-Bsymbolic -Wl,-soname,libcalabash.so \
		-Wl,--version-script=$(SHIM_BUILD)/shim.map $(SHIM_OBJECTS) -o $@.new
	@mv -f $@.new $@

.SECONDARY: $(SHIM_GENERATED)

sanitize:
	cd $(ROOT) && $(PYTHON) -m pytest -q $(wildcard $(ROOT)/tests/native/test_*_sanitized.py)
