# Readers of code images: linked into the simulated driver and into the shim.
IMAGE_DIR := $(ROOT)/native/image
IMAGE_OBJECTS := $(patsubst $(IMAGE_DIR)/%.c,$(BUILD)/image/%.o,$(wildcard $(IMAGE_DIR)/*.c))

$(BUILD)/image/%.o: $(IMAGE_DIR)/%.c $(wildcard $(IMAGE_DIR)/*.h) $(IMAGE_DIR)/part.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@
