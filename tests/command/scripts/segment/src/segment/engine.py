import torch


def iou(logits, target, classes=3):
    guess = logits.argmax(1)
    each = []
    for label in range(classes):
        both = ((guess == label) & (target == label)).sum()
        either = ((guess == label) | (target == label)).sum()
        each.append(both / either.clamp(min=1))
    return torch.stack(each).mean().item()


def validate(net, criterion, loader):
    net.eval()
    losses, scores = [], []
    with torch.inference_mode():
        for images, masks in loader:
            logits = net(images)
            losses.append(criterion(logits, masks).item())
            scores.append(iou(logits, masks))
    return sum(losses) / len(losses), sum(scores) / len(scores)


def fit(net, criterion, train, valid, lr, epochs):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=10 * lr, epochs=epochs, steps_per_epoch=len(train)
    )
    for epoch in range(epochs):
        net.train()
        for images, masks in train:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(net(images), masks)
            loss.backward()
            optimizer.step()
            schedule.step()
        val_loss, score = validate(net, criterion, valid)
        print(
            f"[{epoch + 1}/{epochs}] loss {loss.item():.4f} val_loss {val_loss:.4f} iou {score:.3f}"
        )
